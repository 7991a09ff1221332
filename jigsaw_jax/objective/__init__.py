"""Pure jnp pieces of the policy-gradient objective, one concept a file."""
