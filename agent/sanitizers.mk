# Builds for tests that report every wrong memory access and undefined behaviour.
SANITIZERS = -std=c11 -g -O1 -fsanitize=address,undefined -fno-sanitize-recover=all
