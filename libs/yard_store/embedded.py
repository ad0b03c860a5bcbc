"""An embedded PostgreSQL: the programs come from a wheel, the data lies in one folder, clients come by Unix socket.

The data folder holds everything: `pgdata/` (the database), `log/` (seven daily files), two lock files and the socket.
The server runs in a session of its own and outlives whoever started it; a later start attaches to it again.
"""
