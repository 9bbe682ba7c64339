"""Workers train apart and synchronize now and then: LocalSGD, its adaptive form, DiLoCo."""
