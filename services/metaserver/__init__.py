"""The metaserver: which tier holds which page. It holds copies only; every tier is the authority for its own pages."""
