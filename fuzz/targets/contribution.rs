//! The bytes of a chunk and its integers are one to one; blocks open to the integers that were committed, and to
//! nothing else.
#![no_main]

use libfuzzer_sys::fuzz_target;
use muster_core::codec::{Bytes, List};
use muster_core::contribution::{Commitment, open_block};
use muster_core::ids::Block;
use muster_core::layout::Layout;
use muster_core::packing::{pack, unpack};
use muster_fuzz::manifest;

#[derive(arbitrary::Arbitrary, Debug)]
struct Case<'a> {
    values: Vec<i32>,
    /// What the values are cut to, so that all widths occur.
    bits: u8,
    block: u8,
    other: u8,
    edit: Option<(u8, u16, u8)>,
    bytes: &'a [u8],
    count: u8,
}

fuzz_target!(|case: Case<'_>| {
    let shift = u32::from(case.bits % 32);
    let values: Vec<i32> = case.values.iter().map(|value| value >> shift).collect();
    let encoded = pack(&values);
    // Values are appended: what the buffer holds already stays.
    let mut decoded = vec![7];
    unpack(&encoded, values.len(), &mut decoded).expect("an encoding decodes");
    assert_eq!(decoded[1..], values);
    let mut any = Vec::new();
    if unpack(case.bytes, usize::from(case.count), &mut any).is_ok() {
        assert_eq!(pack(&any), case.bytes);
        assert_eq!(any.len(), usize::from(case.count));
    }

    let layout = Layout::of(&manifest(1, 1).model);
    let pattern = if values.is_empty() { &[0] } else { values.as_slice() };
    let q: Vec<i32> = pattern.iter().copied().cycle().take(layout.parameters()).collect();
    let commitment = Commitment::new(&layout, &q);
    let blocks = layout.blocks().len() as u32;
    let [block, other] = [case.block, case.other].map(|number| Block(u32::from(number) % blocks));
    let mut data = commitment.block(&layout, &q, block).expect("a block of the layout");
    let honest = data.clone();
    if let Some((chunk, at, bits)) = case.edit {
        let mut chunks: Vec<Vec<u8>> = data.chunks.iter().map(|chunk| chunk.to_vec()).collect();
        let chunk = usize::from(chunk) % chunks.len();
        let at = usize::from(at) % chunks[chunk].len();
        chunks[chunk][at] ^= bits;
        let chunks = chunks.into_iter().map(|bytes| Bytes::new(bytes).expect("as long as before"));
        data.chunks = List::new(chunks.collect()).expect("as many as before");
    }
    data.block = other;
    let range = layout.block(other).expect("a block of the layout").range.clone();
    // COMMIT-5: every chunk has its proof, for this block and no other.
    match open_block(&layout, &commitment.root(), &data) {
        Ok(integers) => assert_eq!(integers, q[range], "a block opens to what was committed"),
        Err(_) => assert!(data != honest, "an honest block opens"),
    }
});
