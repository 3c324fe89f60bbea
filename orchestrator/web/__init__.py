"""HTTP: health for the platform, and the gateway through which agents reach the database."""
