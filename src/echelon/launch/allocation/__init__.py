"""Several programs in one allocation: a broker hands out slots, and a keeper holds each node."""
