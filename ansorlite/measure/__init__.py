"""Building and measuring candidates in processes of their own: `builder`, `runner`, `race`."""
