"""The page of `attnmix evaluate`, its figures and its tables: several models side by side."""
