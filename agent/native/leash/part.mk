all: build/leash

# Static: it is started again and again, so its start should cost nothing.
build/leash: $(call sources,leash) | $(TOOLS)/lib
	$(CC) $(CFLAGS) -static -o $@ $(compiled)
