// Reads npz files of NumPy's `savez`: uncompressed zip archives of arrays.

const KINDS = { "<f4": Float32Array, "<f8": Float64Array };

/** Returns arrays by name, each with `shape` and `values`; arrays of other types are left out. */
export function readNpz(buffer) {
  const view = new DataView(buffer);
  const text = new TextDecoder();
  const arrays = {};
  let end = buffer.byteLength - 22;
  while (end >= 0 && view.getUint32(end, true) !== 0x06054b50) end -= 1;
  let entry = view.getUint32(end + 16, true);
  for (let left = view.getUint16(end + 10, true); left > 0; left -= 1) {
    const lengths = [28, 30, 32].map((place) => view.getUint16(entry + place, true));
    const name = text.decode(new Uint8Array(buffer, entry + 46, lengths[0]));
    const local = view.getUint32(entry + 42, true);
    const start = local + 30 + view.getUint16(local + 26, true) + view.getUint16(local + 28, true);
    const array = readNpy(buffer, start);
    if (array) arrays[name.replace(/\.npy$/, "")] = array;
    entry += 46 + lengths[0] + lengths[1] + lengths[2];
  }
  return arrays;
}

function readNpy(buffer, start) {
  const view = new DataView(buffer, start);
  const long = view.getUint8(6) > 1;
  const length = long ? view.getUint32(8, true) : view.getUint16(8, true);
  const first = long ? 12 : 10;
  const header = new TextDecoder("latin1").decode(new Uint8Array(buffer, start + first, length));
  const Kind = KINDS[header.match(/'descr': '([^']+)'/)?.[1]];
  if (!Kind || header.includes("'fortran_order': True")) return null;
  const shape = header.match(/'shape': \(([^)]*)\)/)[1].split(",").filter((part) => part.trim()).map(Number);
  const size = shape.reduce((product, side) => product * side, 1);
  const from = start + first + length;
  return { shape, values: new Kind(buffer.slice(from, from + size * Kind.BYTES_PER_ELEMENT)) };
}
