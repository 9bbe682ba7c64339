"""Workers that train apart and meet now and then: LocalSGD, its adaptive form, DiLoCo."""
