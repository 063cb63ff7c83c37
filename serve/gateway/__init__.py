"""One gateway replica: the Ray Serve ingress and the request pipeline."""
