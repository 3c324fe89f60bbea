"""Explanations of the fleet's state: conditions, causes and fixes. The CLI, the metrics and the alerts show them."""
