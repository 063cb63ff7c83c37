"""How specgate serves: the request path from the ingress down to the engines."""
