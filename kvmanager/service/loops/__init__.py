"""What the service does by itself, in small steps and under leases."""
