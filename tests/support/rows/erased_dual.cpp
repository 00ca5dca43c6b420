#include "erased_rows_of.h"

namespace attn::test {
template ErasedRows<float, true>::ErasedRows(const Setting&);
template ErasedRows<double, true>::ErasedRows(const Setting&);
template ErasedRows<long double, true>::ErasedRows(const Setting&);
}  // namespace attn::test
