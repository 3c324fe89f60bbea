"""Embedded servers: PostgreSQL, PostgREST and S3, each on a free loopback port, each ended with its owner."""
