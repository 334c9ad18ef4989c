// Reads files of safetensors: the length of a JSON header, the header with the place of each tensor, and their values.

const KINDS = {
  F64: (bytes) => new Float64Array(bytes),
  F32: (bytes) => new Float32Array(bytes),
  BF16: (bytes) => new Float32Array(Uint32Array.from(new Uint16Array(bytes), (upper) => upper << 16).buffer),
};

/** Returns tensors by name, each with `shape` and `values`; tensors of other types are left out. */
export function readTensors(buffer) {
  const start = 8 + Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, start - 8)));
  const known = Object.entries(header).filter(([, { dtype }]) => dtype in KINDS);
  const values = ({ dtype, data_offsets: [from, to] }) => KINDS[dtype](buffer.slice(start + from, start + to));
  return Object.fromEntries(known.map(([name, tensor]) => [name, { shape: tensor.shape, values: values(tensor) }]));
}
