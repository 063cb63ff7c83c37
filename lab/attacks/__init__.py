"""The attacks: what a client or an engine may send that breaks a gateway, in tables that every tester plays from."""
