//! Blocks of recent contributions, `contributions/<round>/<member>/<part>.part`, and the tables of the member's own,
//! `contributions/<round>/<member>/table`.
//!
//! Written often and needed for a few rounds, so nothing is synced: it outlives the process, and mostly the machine. What a
//! crash damages is as good as absent: others hold the same blocks, and each proves itself against the frozen commitment; a
//! table is made of the leaves again, or not shown.
//!
//! A contribution has gigabytes, and whoever asks for some blocks of it wants few: [`Home::contribution_places`] says where each
//! lies, and [`Home::load_block`] reads it alone.

use std::borrow::Borrow;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use borsh::BorshDeserialize;
use muster_core::codec::{decode, encode, encoded_length};
use muster_core::ids::{Block, Digest, MemberId, Round};
use muster_core::messages::audit::Rows;
use muster_core::messages::wire::BlockData;

use crate::error::{Kind, Result, StoreError};
use crate::files::{self, Care, SUM_BYTES};
use crate::home::Home;
use crate::regular;

const CONTRIBUTIONS: &str = "contributions";
const ENDING: &str = ".part";
const TABLE: &str = "table";

/// Where a block lies on the disk, as far as could be seen without a look at its checksum: it proves itself when it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    block: Block,
    label: u16,
    begin: u64,
    bytes: u32,
}

impl Place {
    /// The block.
    pub fn block(&self) -> Block {
        self.block
    }
}

impl Home {
    /// Keeps blocks of a member's contribution under a label, over what that label had. They are gone through several times, and
    /// one after the other.
    ///
    /// # Errors
    /// [`Kind::Full`]; what the system reports.
    pub fn save_contribution<B: Borrow<BlockData>>(
        &self,
        round: Round,
        member: &MemberId,
        label: u16,
        blocks: impl Iterator<Item = B> + Clone,
    ) -> Result<()> {
        let directory = self.contribution(round, member);
        files::make_directory(&directory)?;
        // As the codec has a list: its length first.
        let (count, bytes) = blocks.clone().fold((0u32, 0), |(count, bytes), block| {
            (count + 1, bytes + encoded_length::<BlockData>(block.borrow()))
        });
        let count = count.to_le_bytes();
        let (path, name) = (part_path(&directory, label), part_name(round, member, label));
        files::write_sealed_pieces(&path, Care::Cheap, &name, count.len() as u64 + bytes, &|take| {
            take(&count)?;
            blocks.clone().try_for_each(|block| take(&encode::<BlockData>(block.borrow())))
        })
    }

    /// Where the blocks lie that are kept of a member's contribution, in order of labels; damaged files are passed over, at least
    /// from the damage on.
    ///
    /// # Errors
    /// What the system reports.
    pub fn contribution_places(&self, round: Round, member: &MemberId) -> Result<Vec<Place>> {
        let mut places = Vec::new();
        for label in self.contribution_labels(round, member)? {
            let path = part_path(&self.contribution(round, member), label);
            match regular::open(&path, u64::MAX) {
                Ok(file) => match see_places(&mut BufReader::new(file), label, &mut places) {
                    Err(error) if !is_damage(&error) => return Err(StoreError::io(&path, &error)),
                    _ => {}
                },
                Err(error) if error.kind() == Kind::Missing => {}
                Err(error) => return Err(error),
            }
        }
        Ok(places)
    }

    /// The block that lies at a place; none where something else does by now.
    ///
    /// # Errors
    /// What the system reports.
    pub fn load_block(&self, round: Round, member: &MemberId, place: &Place) -> Result<Option<BlockData>> {
        let path = part_path(&self.contribution(round, member), place.label);
        let mut file = match regular::open(&path, u64::MAX) {
            Err(error) if error.kind() == Kind::Missing => return Ok(None),
            file => file?,
        };
        let mut bytes = vec![0; place.bytes as usize];
        let read = file.seek(SeekFrom::Start(place.begin)).and_then(|_| file.read_exact(&mut bytes));
        match read {
            Err(error) if !is_damage(&error) => return Err(StoreError::io(&path, &error)),
            Err(_) => return Ok(None),
            Ok(()) => {}
        }
        Ok(decode::<BlockData>(&bytes).ok().filter(|data| data.block == place.block))
    }

    /// All blocks kept of a member's contribution, in order of labels; damaged files are passed over.
    ///
    /// # Errors
    /// What the system reports.
    pub fn load_contribution(&self, round: Round, member: &MemberId) -> Result<Vec<BlockData>> {
        let mut blocks = Vec::new();
        for label in self.contribution_labels(round, member)? {
            blocks.extend(self.load_part(round, member, label)?.unwrap_or_default());
        }
        Ok(blocks)
    }

    /// The labels under which blocks of a member's contribution are kept, in order.
    ///
    /// # Errors
    /// What the system reports.
    pub fn contribution_labels(&self, round: Round, member: &MemberId) -> Result<Vec<u16>> {
        let names = files::names(&self.contribution(round, member))?;
        let labels = names.iter().filter_map(|name| name.strip_suffix(ENDING)?.parse().ok());
        let mut labels: Vec<u16> = labels.collect();
        labels.sort_unstable();
        Ok(labels)
    }

    /// The blocks kept under a label; none when there are none, or the file is damaged.
    ///
    /// # Errors
    /// What the system reports.
    pub fn load_part(&self, round: Round, member: &MemberId, label: u16) -> Result<Option<Vec<BlockData>>> {
        let path = part_path(&self.contribution(round, member), label);
        match files::read_sealed(&path, &part_name(round, member, label), "") {
            Ok(bytes) => Ok(decode(&bytes).ok()),
            Err(error) if matches!(error.kind(), Kind::Missing | Kind::Corrupt) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Keeps the rows that the leaves of a member's contribution have under this freeze.
    ///
    /// # Errors
    /// [`Kind::Full`]; what the system reports.
    pub fn save_rows(&self, round: Round, member: &MemberId, freeze: &Digest, rows: &Rows) -> Result<()> {
        let directory = self.contribution(round, member);
        files::make_directory(&directory)?;
        files::write_sealed(
            &directory.join(TABLE),
            Care::Cheap,
            &table_name(round, member, freeze),
            &encode(rows),
        )
    }

    /// The rows that were kept under this freeze; none when there are none, or the file is damaged.
    ///
    /// # Errors
    /// What the system reports.
    pub fn load_rows(&self, round: Round, member: &MemberId, freeze: &Digest) -> Result<Option<Rows>> {
        let path = self.contribution(round, member).join(TABLE);
        match files::read_sealed(&path, &table_name(round, member, freeze), "") {
            Ok(bytes) => Ok(decode(&bytes).ok()),
            Err(error) if matches!(error.kind(), Kind::Missing | Kind::Corrupt) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Drops the contributions of the rounds before `before`, and their tables.
    ///
    /// # Errors
    /// What the system reports.
    pub fn prune_contributions(&self, before: Round) -> Result<()> {
        let directory = self.at(CONTRIBUTIONS);
        for name in files::names(&directory)? {
            if name.parse().is_ok_and(|round| Round(round) < before) {
                files::remove_directory(&directory.join(name))?;
            }
        }
        Ok(())
    }

    fn contribution(&self, round: Round, member: &MemberId) -> PathBuf {
        self.at(CONTRIBUTIONS).join(round.to_string()).join(format!("{member:#}"))
    }
}

/// Adds the places of a file's blocks, up to its first damage.
fn see_places(file: &mut BufReader<File>, label: u16, places: &mut Vec<Place>) -> io::Result<()> {
    file.seek(SeekFrom::Start(SUM_BYTES))?;
    let count = u32::deserialize_reader(file)?;
    let mut begin = file.stream_position()?;
    for _ in 0..count {
        let block = BlockData::deserialize_reader(file)?.block;
        let end = file.stream_position()?;
        let bytes = u32::try_from(end - begin).map_err(|_| io::ErrorKind::InvalidData)?;
        places.push(Place { block, label, begin, bytes });
        begin = end;
    }
    Ok(())
}

/// Whether the file has other bytes than were written, rather than that it cannot be read.
fn is_damage(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}

fn part_path(directory: &Path, label: u16) -> PathBuf {
    directory.join(format!("{label}{ENDING}"))
}

fn part_name(round: Round, member: &MemberId, label: u16) -> String {
    format!("part {round} {member:#} {label}")
}

fn table_name(round: Round, member: &MemberId, freeze: &Digest) -> String {
    format!("table {round} {member:#} {freeze:#}")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use muster_core::codec::{Bytes, List};
    use muster_core::ids::Block;
    use muster_core::messages::audit::{Sketch, TableRow};

    use super::*;

    fn block(number: u32) -> BlockData {
        let chunk = Bytes::new(vec![number as u8; 40]).unwrap();
        BlockData {
            block: Block(number),
            chunks: List::new(vec![chunk]).unwrap(),
            proofs: List::new(vec![]).unwrap(),
        }
    }

    const ME: MemberId = MemberId([5; 32]);
    const YOU: MemberId = MemberId([6; 32]);

    #[test]
    fn parts_come_back_together() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::open(directory.path()).unwrap();
        assert!(home.load_contribution(Round(1), &ME).unwrap().is_empty());
        home.save_contribution(Round(1), &ME, 10, [block(7)].iter()).unwrap();
        home.save_contribution(Round(1), &ME, 2, [block(3), block(4)].iter()).unwrap();
        home.save_contribution(Round(1), &ME, 2, [block(3), block(5)].iter()).unwrap();
        home.save_contribution(Round(1), &YOU, 2, [block(9)].iter()).unwrap();
        assert_eq!(home.load_contribution(Round(1), &ME).unwrap(), [block(3), block(5), block(7)]);
        assert_eq!(home.load_part(Round(1), &YOU, 2).unwrap(), Some(vec![block(9)]));
        assert_eq!(home.load_part(Round(1), &YOU, 3).unwrap(), None);
    }

    #[test]
    fn a_block_is_read_where_it_lies() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::open(directory.path()).unwrap();
        assert!(home.contribution_places(Round(1), &ME).unwrap().is_empty());
        home.save_contribution(Round(1), &ME, 10, [block(7)].iter()).unwrap();
        home.save_contribution(Round(1), &ME, 2, [block(3), block(5)].iter()).unwrap();
        let places = || home.contribution_places(Round(1), &ME).unwrap();
        let read = |place: &Place| home.load_block(Round(1), &ME, place).unwrap();
        let found = places();
        assert_eq!(found.iter().map(|place| place.block().0).collect::<Vec<_>>(), [3, 5, 7]);
        assert!(found.iter().all(|place| read(place) == Some(block(place.block().0))));
        // What is cut off is not there; nor is what another write has taken the place of.
        let path = part_path(&home.contribution(Round(1), &ME), 2);
        let whole = fs::read(&path).unwrap();
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            let left = places();
            assert!(left.iter().all(|place| read(place) == Some(block(place.block().0))), "cut to {length}");
            assert!(left.len() < 3 && left.last().unwrap().block() == Block(7), "cut to {length}");
        }
        home.save_contribution(Round(1), &ME, 2, [block(4)].iter()).unwrap();
        assert_eq!(found.iter().map(read).collect::<Vec<_>>(), [None, None, Some(block(7))]);
        home.prune_contributions(Round(2)).unwrap();
        assert!(found.iter().all(|place| read(place).is_none()));
    }

    #[test]
    fn damage_is_absence() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::open(directory.path()).unwrap();
        home.save_contribution(Round(1), &ME, 0, [block(1)].iter()).unwrap();
        home.save_contribution(Round(1), &ME, 1, [block(2)].iter()).unwrap();
        let path = part_path(&home.contribution(Round(1), &ME), 0);
        let whole = fs::read(&path).unwrap();
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            assert_eq!(home.load_contribution(Round(1), &ME).unwrap(), [block(2)], "cut to {length}");
        }
        for place in 0..whole.len() {
            let mut forged = whole.clone();
            forged[place] ^= 1;
            fs::write(&path, forged).unwrap();
            assert_eq!(home.load_part(Round(1), &ME, 0).unwrap(), None, "byte {place}");
        }
        let other = part_path(&home.contribution(Round(1), &ME), 1);
        fs::copy(other, &path).unwrap();
        assert_eq!(home.load_part(Round(1), &ME, 0).unwrap(), None, "another part's file");
    }

    #[test]
    fn audit_2_a_table_is_that_of_its_round_and_freeze() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::open(directory.path()).unwrap();
        let freeze = Digest([4; 32]);
        let row = |loss| TableRow { sketch: Sketch::Fingerprint([loss as u64, 9]), loss };
        let rows = Rows::new(vec![row(5), row(6)]).unwrap();
        assert_eq!(home.load_rows(Round(1), &ME, &freeze).unwrap(), None);
        home.save_rows(Round(1), &ME, &freeze, &rows).unwrap();
        home.save_contribution(Round(1), &ME, 0, [block(1)].iter()).unwrap();
        assert_eq!(home.load_rows(Round(1), &ME, &freeze).unwrap(), Some(rows));
        assert_eq!(home.load_rows(Round(1), &ME, &Digest([5; 32])).unwrap(), None, "another freeze");
        assert_eq!(home.load_rows(Round(2), &ME, &freeze).unwrap(), None, "another round");
        assert_eq!(home.load_contribution(Round(1), &ME).unwrap(), [block(1)], "it is no part");
        let path = home.contribution(Round(1), &ME).join(TABLE);
        let mut damaged = fs::read(&path).unwrap();
        damaged[20] ^= 1;
        fs::write(&path, damaged).unwrap();
        assert_eq!(home.load_rows(Round(1), &ME, &freeze).unwrap(), None, "damaged");
        home.prune_contributions(Round(2)).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn old_rounds_go() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::open(directory.path()).unwrap();
        home.prune_contributions(Round(9)).unwrap();
        for round in [1, 2, 10] {
            home.save_contribution(Round(round), &ME, 0, [block(1)].iter()).unwrap();
        }
        home.prune_contributions(Round(2)).unwrap();
        let kept = [1, 2, 10].map(|round| home.load_contribution(Round(round), &ME).unwrap().len());
        assert_eq!(kept, [0, 1, 1]);
    }
}
