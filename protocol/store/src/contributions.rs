//! Blocks of recent contributions, `contributions/<round>/<member>/<part>.part`, and the tables of the member's own,
//! `contributions/<round>/<member>/table`.
//!
//! Written often and needed for a few rounds, so nothing is synced: it outlives the process, and mostly the machine. What a
//! crash damages is as good as absent: others hold the same blocks, and each proves itself against the frozen commitment; a
//! table is made of the leaves again, or not shown.

use std::path::{Path, PathBuf};

use muster_core::codec::{decode, encode};
use muster_core::ids::{Digest, MemberId, Round};
use muster_core::messages::audit::Rows;
use muster_core::messages::wire::BlockData;

use crate::error::{Kind, Result};
use crate::files::{self, Care};
use crate::home::Home;

const CONTRIBUTIONS: &str = "contributions";
const ENDING: &str = ".part";
const TABLE: &str = "table";

impl Home {
    /// Keeps blocks of a member's contribution under a label, over what that label had.
    ///
    /// # Errors
    /// [`Kind::Full`]; what the system reports.
    pub fn save_contribution(
        &self,
        round: Round,
        member: &MemberId,
        label: u16,
        blocks: &[BlockData],
    ) -> Result<()> {
        let directory = self.contribution(round, member);
        files::make_directory(&directory)?;
        let name = part_name(round, member, label);
        files::write_sealed(&part_path(&directory, label), Care::Cheap, &name, &encode(blocks))
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
        home.save_contribution(Round(1), &ME, 10, &[block(7)]).unwrap();
        home.save_contribution(Round(1), &ME, 2, &[block(3), block(4)]).unwrap();
        home.save_contribution(Round(1), &ME, 2, &[block(3), block(5)]).unwrap();
        home.save_contribution(Round(1), &YOU, 2, &[block(9)]).unwrap();
        assert_eq!(home.load_contribution(Round(1), &ME).unwrap(), [block(3), block(5), block(7)]);
        assert_eq!(home.load_part(Round(1), &YOU, 2).unwrap(), Some(vec![block(9)]));
        assert_eq!(home.load_part(Round(1), &YOU, 3).unwrap(), None);
    }

    #[test]
    fn damage_is_absence() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::open(directory.path()).unwrap();
        home.save_contribution(Round(1), &ME, 0, &[block(1)]).unwrap();
        home.save_contribution(Round(1), &ME, 1, &[block(2)]).unwrap();
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
        home.save_contribution(Round(1), &ME, 0, &[block(1)]).unwrap();
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
            home.save_contribution(Round(round), &ME, 0, &[block(1)]).unwrap();
        }
        home.prune_contributions(Round(2)).unwrap();
        let kept = [1, 2, 10].map(|round| home.load_contribution(Round(round), &ME).unwrap().len());
        assert_eq!(kept, [0, 1, 1]);
    }
}
