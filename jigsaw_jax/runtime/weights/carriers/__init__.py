"""Ways for payloads between processes, all behind `carrier.Carrier`."""
