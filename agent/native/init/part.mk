all: $(TOOLS)/init

$(TOOLS)/init: $(call sources,init) | $(TOOLS)/lib
	$(CC) $(CFLAGS) -static -o $@ $(compiled)
