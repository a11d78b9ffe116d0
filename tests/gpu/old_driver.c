/* Stands in for libcuda.so.1 where a test wants a driver that is too old: what the CUDA runtime asks it first. */
int cuInit(unsigned flags) {
  (void)flags;
  return 0;
}

int cuDriverGetVersion(int* version) {
  *version = 12040;
  return 0;
}
