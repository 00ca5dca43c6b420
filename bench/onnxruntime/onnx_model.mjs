// Writes an ONNX model with one MultiHeadAttention of com.microsoft, as protocol buffers: the fields that it needs, with
// the numbers that onnx.proto gives them. (https://github.com/onnx/onnx/blob/main/onnx/onnx.proto)
const varint = (n) => (n < 128 ? [n] : [(n & 127) | 128, ...varint(n >> 7)]);
const integer = (field, n) => [...varint(field << 3), ...varint(n)];
const bytes = (field, content) => {
  const all = typeof content === 'string' ? [...new TextEncoder().encode(content)] : content;
  return [...varint((field << 3) | 2), ...varint(all.length), ...all];
};

const FLOAT = 1, INT = 2;  // TensorProto.DataType, AttributeProto.AttributeType
const tensor = (name) => [...bytes(1, name), ...bytes(2, bytes(1, integer(1, FLOAT)))];
const attribute = (name, n) => bytes(5, [...bytes(1, name), ...integer(3, n), ...integer(20, INT)]);
const opset = (domain, version) => bytes(8, [...bytes(1, domain), ...integer(2, version)]);

/// The inputs are query, key and value, (batch, len, heads * dim); the output is `out`.
export function attentionModel(heads, isCausal) {
  const inputs = ['query', 'key', 'value'];
  const node = [...inputs.flatMap((name) => bytes(1, name)), ...bytes(2, 'out'), ...bytes(4, 'MultiHeadAttention'),
                ...attribute('num_heads', heads), ...attribute('unidirectional', isCausal ? 1 : 0),
                ...bytes(7, 'com.microsoft')];
  const graph = [...bytes(1, node), ...bytes(2, 'attention'), ...inputs.flatMap((name) => bytes(11, tensor(name))),
                 ...bytes(12, tensor('out'))];
  return new Uint8Array([...integer(1, 8), ...bytes(7, graph), ...opset('', 17), ...opset('com.microsoft', 1)]);
}
