"""What goes over the wire: formats, one folder each, and the requests that are written in them."""
