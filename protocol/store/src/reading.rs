//! Reading an archive without owning it: no lock, nothing written.

use std::path::Path;

use muster_core::codec::decode;
use muster_core::ids::{Digest, MemberId, Part, Round};
use muster_core::layout::Layout;
use muster_core::limits::MESSAGE_BYTES;
use muster_core::messages::wire::BlockData;
use muster_core::state::{State, StateRoots, Update, integers, reals};

use crate::archive::{
    EXHIBIT_ADVICE, block_exhibit_file, block_exhibit_name, evidence_file, exhibit_file, exhibit_name,
    part_exhibit_file, part_exhibit_name,
};
use crate::error::{Kind, Result, StoreError};
use crate::files;
use crate::home::{EVIDENCE, EXHIBITS, STATES, UPDATES};
use crate::regular;
use crate::states::{load_whole, rounds, state_file};
use crate::updates::{self, AggregateFile, update_path};

/// Bytes of a state beside its vectors, at most: roots, and an exponent for each tensor of each row.
const STATE_ROOM: u64 = 64 << 20;
/// Bytes of the proofs of a contribution's blocks, at most: one for each tensor at least, of a few hundred bytes each.
const PROOF_ROOM: u64 = 32 << 20;

/// The bytes of a folder's `manifest.bin`. A manifest travels in a message.
///
/// # Errors
/// [`Kind::Missing`]; [`Kind::Refused`]; what the system reports.
pub fn manifest(folder: &Path) -> Result<Vec<u8>> {
    regular::read(&folder.join("manifest.bin"), MESSAGE_BYTES as u64)
}

/// A convict's contribution in an archive, if it is there, of at most as many coefficients as the layout has.
///
/// # Errors
/// [`Kind::Corrupt`]; [`Kind::Refused`]; what the system reports.
pub fn exhibit(folder: &Path, layout: &Layout, round: Round, member: &MemberId) -> Result<Option<Vec<i32>>> {
    let path = folder.join(EXHIBITS).join(exhibit_file(round, member));
    let name = exhibit_name(round, member);
    let read = files::read_sealed_within(&path, &name, EXHIBIT_ADVICE, vector(layout));
    present(read).map(|bytes| bytes.map(|bytes| integers(&bytes)))
}

/// The blocks of one part of a convict's contribution in an archive, if they are there. Their proofs are not checked.
///
/// # Errors
/// [`Kind::Corrupt`]; [`Kind::Refused`]; what the system reports.
pub fn exhibited_blocks(
    folder: &Path,
    layout: &Layout,
    round: Round,
    member: &MemberId,
    part: Part,
) -> Result<Option<Vec<BlockData>>> {
    let path = folder.join(EXHIBITS).join(block_exhibit_file(round, member, part));
    let name = block_exhibit_name(round, member, part);
    // Packed, a chunk takes little more than its integers.
    let most = vector(layout).saturating_mul(2).saturating_add(PROOF_ROOM);
    let read = files::read_sealed_within(&path, &name, EXHIBIT_ADVICE, most);
    let Some(bytes) = present(read)? else { return Ok(None) };
    let corrupt =
        |reject: muster_core::error::Reject| StoreError::corrupt(&path, reject.to_string(), EXHIBIT_ADVICE);
    decode(&bytes).map(Some).map_err(corrupt)
}

/// The values of a wrong part in an archive, block after block, if they are there.
///
/// # Errors
/// [`Kind::Corrupt`]; [`Kind::Refused`]; what the system reports.
pub fn part_exhibit(folder: &Path, layout: &Layout, round: Round, part: Part) -> Result<Option<Vec<f32>>> {
    let path = folder.join(EXHIBITS).join(part_exhibit_file(round, part));
    let name = part_exhibit_name(round, part);
    let read = files::read_sealed_within(&path, &name, EXHIBIT_ADVICE, vector(layout));
    present(read).map(|bytes| bytes.map(|bytes| reals(&bytes)))
}

/// Bytes of a vector with a value for each coefficient of a contribution.
fn vector(layout: &Layout) -> u64 {
    (layout.coefficients() as u64).saturating_mul(4)
}

/// The bytes of a piece of evidence in an archive, if it is there; they may be anything. Evidence travels in a message.
///
/// # Errors
/// [`Kind::Refused`]; what the system reports.
pub fn evidence(folder: &Path, digest: &Digest) -> Result<Option<Vec<u8>>> {
    present(evidence_in(&folder.join(EVIDENCE).join(evidence_file(digest))))
}

/// The bytes of a file of evidence, wherever it is; they may be anything.
///
/// # Errors
/// [`Kind::Missing`]; [`Kind::Refused`]; what the system reports.
pub fn evidence_in(path: &Path) -> Result<Vec<u8>> {
    regular::read(path, MESSAGE_BYTES as u64)
}

/// Whether a piece of evidence is in an archive.
pub fn has_evidence(folder: &Path, digest: &Digest) -> bool {
    folder.join(EVIDENCE).join(evidence_file(digest)).is_file()
}

/// Rounds whose states are kept in a home, in order.
///
/// # Errors
/// What the system reports.
pub fn states(folder: &Path) -> Result<Vec<Round>> {
    rounds(&folder.join(STATES), ".state")
}

/// The state before a round, and its roots: no larger than one of this layout.
///
/// # Errors
/// [`Kind::Missing`]; [`Kind::Corrupt`]; [`Kind::Refused`]; what the system reports.
pub fn state(folder: &Path, layout: &Layout, round: Round) -> Result<(State, StateRoots)> {
    // Parameters and two moments.
    let most = (layout.parameters() as u64).saturating_mul(3 * 4).saturating_add(STATE_ROOM);
    load_whole(&folder.join(STATES).join(state_file(round)), round, most)
}

/// Whether the aggregate of a round is kept.
pub fn has_aggregate(folder: &Path, round: Round) -> bool {
    update_path(&folder.join(UPDATES), round).is_file()
}

/// The aggregate of a round, if it is kept.
///
/// # Errors
/// [`Kind::Corrupt`]; what the system reports.
pub fn aggregate(folder: &Path, layout: &Layout, round: Round) -> Result<Option<Update>> {
    present(AggregateFile::open(&folder.join(UPDATES), layout, round).and_then(AggregateFile::all))
}

/// What the Outcome of a round applied, of its own aggregate and of earlier ones, shard by shard; none where its own is not
/// kept.
///
/// # Errors
/// [`Kind::Corrupt`]; what the system reports.
pub fn steps(
    folder: &Path,
    layout: &Layout,
    round: Round,
) -> Result<Option<impl Iterator<Item = Result<Update>>>> {
    present(updates::steps(folder.join(UPDATES), layout, round))
}

fn present<T>(read: Result<T>) -> Result<Option<T>> {
    match read {
        Err(error) if matches!(error.kind(), Kind::Missing) => Ok(None),
        read => read.map(Some),
    }
}
