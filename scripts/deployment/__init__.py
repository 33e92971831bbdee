"""A deployment of PegaFlow on loopback, under supervisord, for the demo and the end-to-end tests."""
