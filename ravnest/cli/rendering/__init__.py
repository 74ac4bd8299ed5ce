"""Plans for the eye and for programs: tables, JSON, pictures. Computes nothing new."""
