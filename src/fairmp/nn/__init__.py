"""The propagation layers FMP and PPR, their solvers, and the networks around them."""
