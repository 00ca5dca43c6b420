#include "erased_rows_of.h"

namespace attn::test {
template ErasedRows<float>::ErasedRows(const Setting&);
template ErasedRows<double>::ErasedRows(const Setting&);
}  // namespace attn::test
