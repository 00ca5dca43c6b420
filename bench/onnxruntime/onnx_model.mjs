// Writes an ONNX model of one operator, as protocol buffers: the fields that it needs, with the numbers that onnx.proto
// gives them. (https://github.com/onnx/onnx/blob/main/onnx/onnx.proto)
const varint = (n) => (n < 128 ? [n] : [(n & 127) | 128, ...varint(n >> 7)]);
const integer = (field, n) => [...varint(field << 3), ...varint(n)];
const bytes = (field, content) => {
  const all = typeof content === 'string' ? [...new TextEncoder().encode(content)] : content;
  return [...varint((field << 3) | 2), ...varint(all.length), ...all];
};

const TYPES = {float32: 1, int32: 6, float16: 10}, INT = 2;  // TensorProto.DataType, AttributeProto.AttributeType
const tensor = ([name, type]) => [...bytes(1, name), ...bytes(2, bytes(1, integer(1, TYPES[type])))];
const attribute = ([name, n]) => bytes(5, [...bytes(1, name), ...integer(3, n), ...integer(20, INT)]);
const opset = (domain, version) => bytes(8, [...bytes(1, domain), ...integer(2, version)]);
const MICROSOFT = 'com.microsoft';

/// Inputs and outputs are {name: type}, attributes {name: integer}. Operators of ONNX itself are those of opset 23.
export function model(operator, domain, inputs, outputs, attributes) {
  const [from, to] = [inputs, outputs].map(Object.entries);
  const node = [...from.flatMap(([name]) => bytes(1, name)), ...to.flatMap(([name]) => bytes(2, name)),
                ...bytes(4, operator), ...Object.entries(attributes).flatMap(attribute), ...bytes(7, domain)];
  const graph = [...bytes(1, node), ...bytes(2, 'attention'), ...from.flatMap((x) => bytes(11, tensor(x))),
                 ...to.flatMap((x) => bytes(12, tensor(x)))];
  return new Uint8Array([...integer(1, 10), ...bytes(7, graph), ...opset('', 23), ...opset(MICROSOFT, 1)]);
}

/// query, key and value are (batch, len, heads * dim), and so is the output, `out`.
export function multiHeadAttention(type, heads, isCausal) {
  return model('MultiHeadAttention', MICROSOFT, {query: type, key: type, value: type}, {out: type},
               {num_heads: heads, unidirectional: isCausal ? 1 : 0});
}

/// The same with ONNX's own operator, which has grouped heads. Its tensors may also be (batch, heads, len, dim).
export function attention(type, heads, kvHeads, isCausal) {
  return model('Attention', '', {query: type, key: type, value: type}, {out: type},
               {q_num_heads: heads, kv_num_heads: kvHeads, is_causal: isCausal ? 1 : 0});
}

/// The causal operator of exported language models. It appends key and value to past_key and past_value, (batch, heads,
/// len, dim); the outputs present_key and present_value may be the same memory.
export function groupQueryAttention(type, heads, kvHeads) {
  return model('GroupQueryAttention', MICROSOFT,
               {query: type, key: type, value: type, past_key: type, past_value: type, seqlens_k: 'int32',
                total_sequence_length: 'int32'},
               {out: type, present_key: type, present_value: type}, {num_heads: heads, kv_num_heads: kvHeads});
}
