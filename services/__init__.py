"""The independent processes of PegaFlow: tier, metaserver, router and the inspection tool."""
