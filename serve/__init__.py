"""The serving side of specgate: the request path from the ingress down to the engines."""
