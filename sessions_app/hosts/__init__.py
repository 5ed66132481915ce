"""Every process of Kandev is seen where it runs, and one that falls silent is named.

Each web server, supervisor and worker records a sign of life every half minute, where hosts share the database three
times during a lease, with what its machine has left. A process that is silent is not proven dead: it is shown as
silent, since when, and nothing is done to what it did. One that is proven gone by another one of its place has ended.
"""
