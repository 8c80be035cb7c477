//! What a node does in a round beside leaves and the update, timed.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use muster_core::aggregate::{self, Input, WEIGHT_ONE};
use muster_core::bug::OrBug;
use muster_core::codec::{decode, encode};
use muster_core::contribution::{PackedContribution, PartDigest, open_block};
use muster_core::ids::{Block, Digest};
use muster_core::layout::Layout;
use muster_core::manifest::Manifest;
use muster_core::messages::wire::BlockData;
use muster_core::reduction::OwnBlock;
use muster_core::rounding::{BlockValues, ResultGrid};
use muster_core::state::State;

/// Inputs of a block, at most: more nodes have smaller parts.
const INPUTS: usize = 16;

/// Rounds between two states that a node writes for others.
const OFFERED: usize = 3;
/// Bytes that a socket takes before anybody reads.
const PIECE: usize = 16 << 10;
/// Bytes of the file that is written, again and again.
const FILE_BYTES: usize = 64 << 20;

/// Packs and hashes a sum of leaves; sends it, receives and checks as much of other nodes' and combines a part of it, as one of the
/// nodes that the run begins with; reads the results of all parts and compares them with its own; hashes the state. What it keeps is
/// written. None where this machine has no loopback, or no room for that.
pub(super) fn exchange(manifest: &Manifest, sum: Vec<i32>, state: &State) -> Option<Duration> {
    let layout = Layout::of_run(manifest);
    let q = of_planes(&layout, sum);
    let (mut line, mut disk) = (Line::open().ok()?, Disk::open().ok()?);
    let begun = Instant::now();
    let digest = exchanged(manifest, &layout, &q, &mut line, &mut disk)?;
    keep(state, &mut disk).ok()?;
    std::hint::black_box((digest, state.roots()));
    Some(begun.elapsed())
}

/// The integers of all planes, the same in each where there are those of one, within what each may have (GRID-7).
fn of_planes(layout: &Layout, mut q: Vec<i32>) -> Vec<i32> {
    let length = layout.parameters();
    (q.len() / length.max(1)..layout.planes()).for_each(|_| q.extend_from_within(..length));
    for (plane, q) in q.chunks_mut(length.max(1)).enumerate() {
        let most = layout.most(plane);
        q.iter_mut().for_each(|q| *q = (*q).clamp(-most, most));
    }
    q
}

fn exchanged(
    manifest: &Manifest,
    layout: &Layout,
    q: &[i32],
    line: &mut Line,
    disk: &mut Disk,
) -> Option<Digest> {
    let nodes = usize::from(manifest.admission.start_nodes).clamp(2, INPUTS);
    let freeze = Digest([1; 32]);
    let packed = PackedContribution::new(layout, q);
    let (root, mut digest) = (packed.root(), PartDigest::default());
    for number in 0..layout.blocks().len() {
        let block = Block(u32::try_from(number).ok()?);
        let sent = line.carry(&encode(&packed.block(layout, block)?)).ok()?;
        // Its own, and one of others.
        (0..2).try_for_each(|_| disk.write(&sent)).ok()?;
        let received: BlockData = decode(&sent).or_bug("a block that was encoded here")?;
        let integers = open_block(layout, &root, &received).or_bug("a block that was packed here")?;
        let is_own = number % nodes == 0 && !layout.is_of_moments(block);
        let mut values = if is_own {
            let input = Input { q: &integers, m: 1, weight: WEIGHT_ONE };
            aggregate::block(&manifest.aggregation, &vec![input; nodes])?.values
        } else {
            integers.iter().map(|q| *q as f32).collect()
        };
        let (grid, count) = (ResultGrid::of(layout, block), values.len());
        grid.round(&mut values, &freeze, block);
        let result = BlockValues::of(grid, values);
        let result = line.carry(result.bytes().or_bug("a result on the grid")?).ok()?;
        let read = BlockValues::read(grid, &result, count).or_bug("a result that was packed here")?;
        let own = OwnBlock { q: &integers, m: 1, scale: 1.0, step: grid.step() };
        std::hint::black_box(own.objects(&read.1));
        digest = digest.block(&read.1);
    }
    Some(digest.finish())
}

/// Writes what stays of a state: its parameters in each round, all of it for others in some.
fn keep(state: &State, disk: &mut Disk) -> io::Result<()> {
    let vectors = [&state.parameters, &state.first, &state.second];
    let offered = vectors.map(|values| &values[..values.len() / OFFERED]);
    let pieces = [&state.parameters[..]].into_iter().chain(offered).flat_map(|values| values.chunks(PIECE));
    pieces.into_iter().try_for_each(|piece| {
        let bytes: Vec<u8> = piece.iter().flat_map(|value| value.to_le_bytes()).collect();
        disk.write(&bytes)
    })
}

/// A file without a name.
struct Disk {
    file: File,
    written: usize,
}

impl Disk {
    fn open() -> io::Result<Self> {
        Ok(Self { file: tempfile::tempfile()?, written: 0 })
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        // The folder of temporary files may be in memory.
        if self.written > FILE_BYTES {
            self.file.rewind()?;
            self.written = 0;
        }
        self.written += bytes.len();
        self.file.write_all(bytes)
    }
}

/// Two ends of a line within this machine.
struct Line(TcpStream, TcpStream);

impl Line {
    fn open() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let there = TcpStream::connect(listener.local_addr()?)?;
        let (here, from) = listener.accept()?;
        // Another program may have been faster, and nobody would read.
        if from != there.local_addr()? {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        Ok(Self(there, here))
    }

    /// Bytes at the other end.
    fn carry(&mut self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut received = vec![0; bytes.len()];
        for (sent, received) in bytes.chunks(PIECE).zip(received.chunks_mut(PIECE)) {
            self.0.write_all(sent)?;
            self.1.read_exact(received)?;
        }
        Ok(received)
    }
}
