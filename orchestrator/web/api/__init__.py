"""The API for applications, `/api/v1`. routes.py has the table that makes the routes and the OpenAPI document."""
