// FLASHMOE_API marks what the shared library exports; everything else in it is hidden. Readable from C too.
#pragma once

#define FLASHMOE_API __attribute__((visibility("default")))
