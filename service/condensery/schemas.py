"""The bodies of REST requests and replies."""
