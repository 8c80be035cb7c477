//! What convicted members leave behind: exhibits for replay, and the evidence itself.

use std::path::PathBuf;

use muster_core::codec::{decode, encode};
use muster_core::hash::{Domain, Hasher};
use muster_core::ids::{Digest, MemberId, Part, Round, unhex};
use muster_core::limits::MESSAGE_BYTES;
use muster_core::messages::evidence::Evidence;
use muster_core::messages::wire::BlockData;
use muster_core::state::{integer_bytes, integers, real_bytes};

use crate::error::{Result, StoreError};
use crate::files::{self, Care};
use crate::home::{EVIDENCE, EXHIBITS, Home};
use crate::regular;

pub(crate) const EXHIBIT_ADVICE: &str = "restore it from another copy of the archive";
const EVIDENCE_ADVICE: &str = "delete it and ask the steward for it again";

impl Home {
    /// Keeps the whole contribution of a convicted member, which nobody can recompute.
    ///
    /// # Errors
    /// [`crate::error::Kind::Full`]; what the system reports.
    pub fn save_exhibit(&self, round: Round, member: &MemberId, q: &[i32]) -> Result<()> {
        let name = exhibit_name(round, member);
        files::write_sealed(&self.exhibit_path(round, member), Care::Durable, &name, &integer_bytes(q))
    }

    /// An exhibit.
    ///
    /// # Errors
    /// [`crate::error::Kind::Missing`]; [`crate::error::Kind::Corrupt`]; what the system reports.
    pub fn load_exhibit(&self, round: Round, member: &MemberId) -> Result<Vec<i32>> {
        let (path, name) = (self.exhibit_path(round, member), exhibit_name(round, member));
        Ok(integers(&files::read_sealed(&path, &name, EXHIBIT_ADVICE)?))
    }

    /// Keeps the blocks of one part of a convicted member's contribution, each with its proofs.
    ///
    /// # Errors
    /// [`crate::error::Kind::Full`]; what the system reports.
    pub fn save_exhibited_blocks(
        &self,
        round: Round,
        member: &MemberId,
        part: Part,
        blocks: &[BlockData],
    ) -> Result<()> {
        let path = self.at(EXHIBITS).join(block_exhibit_file(round, member, part));
        let name = block_exhibit_name(round, member, part);
        files::write_sealed(&path, Care::Durable, &name, &encode(blocks))
    }

    /// Whether the blocks of a part of a member's contribution are kept.
    pub fn has_exhibited_blocks(&self, round: Round, member: &MemberId, part: Part) -> bool {
        self.at(EXHIBITS).join(block_exhibit_file(round, member, part)).is_file()
    }

    /// Keeps the values of a part that counted and was wrong, block after block.
    ///
    /// # Errors
    /// [`crate::error::Kind::Full`]; what the system reports.
    pub fn save_part_exhibit(&self, round: Round, part: Part, values: &[f32]) -> Result<()> {
        let path = self.at(EXHIBITS).join(part_exhibit_file(round, part));
        files::write_sealed(&path, Care::Durable, &part_exhibit_name(round, part), &real_bytes(values))
    }

    /// Drops the values of a part, which nobody needs after all. That they are not there is no error.
    ///
    /// # Errors
    /// What the system reports.
    pub fn drop_part_exhibit(&self, round: Round, part: Part) -> Result<()> {
        files::remove(&self.at(EXHIBITS).join(part_exhibit_file(round, part)))
    }

    /// Which contributions are kept as exhibits, in order.
    ///
    /// # Errors
    /// What the system reports.
    pub fn exhibits(&self) -> Result<Vec<(Round, MemberId)>> {
        let names = files::names(&self.at(EXHIBITS))?;
        let exhibits = names.iter().filter_map(|name| {
            let (round, member) = name.strip_suffix(".exhibit")?.split_once('.')?;
            Some((Round(round.parse().ok()?), MemberId(unhex(member)?)))
        });
        let mut exhibits: Vec<_> = exhibits.collect();
        exhibits.sort_unstable();
        Ok(exhibits)
    }

    /// Keeps a piece of evidence as a file of its canonical bytes, and returns its name.
    ///
    /// # Errors
    /// [`crate::error::Kind::Full`]; what the system reports.
    pub fn save_evidence(&self, evidence: &Evidence) -> Result<Digest> {
        // The plain bytes, without a checksum in front: the file is what anybody re-executes, and its name is
        // the hash.
        let (digest, bytes) = (evidence.digest(), encode(evidence));
        files::write(&self.evidence_path(&digest), Care::Durable, |file| file.write_all(&bytes))?;
        Ok(digest)
    }

    /// A piece of evidence, checked against its name.
    ///
    /// # Errors
    /// [`crate::error::Kind::Missing`]; [`crate::error::Kind::Corrupt`]; what the system reports.
    pub fn load_evidence(&self, digest: &Digest) -> Result<Evidence> {
        let path = self.evidence_path(digest);
        let bytes = regular::read(&path, MESSAGE_BYTES as u64)?;
        let corrupt = |cause: String| StoreError::corrupt(&path, cause, EVIDENCE_ADVICE);
        // A file of evidence is passed around: only its name says which one it is.
        if Hasher::new(Domain::EVIDENCE).part(&bytes).finish() != *digest {
            return Err(corrupt("its hash is not its name".into()));
        }
        decode(&bytes).map_err(|reject| corrupt(reject.to_string()))
    }

    /// Names of the evidence kept, in order.
    ///
    /// # Errors
    /// What the system reports.
    pub fn evidence(&self) -> Result<Vec<Digest>> {
        let names = files::names(&self.at(EVIDENCE))?;
        Ok(names.iter().filter_map(|name| unhex(name.strip_suffix(".evidence")?).map(Digest)).collect())
    }

    /// Where a piece of evidence lies, to show it to people.
    pub fn evidence_path(&self, digest: &Digest) -> PathBuf {
        self.at(EVIDENCE).join(evidence_file(digest))
    }

    fn exhibit_path(&self, round: Round, member: &MemberId) -> PathBuf {
        self.at(EXHIBITS).join(exhibit_file(round, member))
    }
}

pub(crate) fn evidence_file(digest: &Digest) -> String {
    format!("{digest:#}.evidence")
}

pub(crate) fn exhibit_file(round: Round, member: &MemberId) -> String {
    format!("{round}.{member:#}.exhibit")
}

pub(crate) fn block_exhibit_file(round: Round, member: &MemberId, part: Part) -> String {
    format!("{round}.{member:#}.{part}.exhibit")
}

pub(crate) fn block_exhibit_name(round: Round, member: &MemberId, part: Part) -> String {
    format!("exhibit {round} {member:#} {part}")
}

pub(crate) fn part_exhibit_file(round: Round, part: Part) -> String {
    format!("{round}.part-{part}.exhibit")
}

pub(crate) fn part_exhibit_name(round: Round, part: Part) -> String {
    format!("exhibit {round} part {part}")
}

pub(crate) fn exhibit_name(round: Round, member: &MemberId) -> String {
    format!("exhibit {round} {member:#}")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use muster_core::codec::{Bytes, List};
    use muster_core::ids::{Block, Height, RunId};
    use muster_core::layout::Layout;
    use muster_core::manifest::fixture::tiny;
    use muster_core::messages::evidence::Total;
    use muster_core::messages::record::{Body, Record};
    use muster_core::sign::Identity;

    use super::*;
    use crate::error::Kind;
    use crate::reading;

    fn evidence(culprit: u8) -> Evidence {
        let body = Body::Close(Digest([1; 32]));
        let record = Record { height: Height(0), previous: Digest([3; 32]), body };
        let freeze = Identity::from_secret(&[7; 32]).sign(RunId(Digest([1; 32])), &record);
        Evidence::Total(Total { freeze, culprit: MemberId([culprit; 32]) })
    }

    #[test]
    fn exhibits_come_back_whole_or_not() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::open(directory.path()).unwrap();
        let (me, you) = (MemberId([5; 32]), MemberId([6; 32]));
        assert!(home.exhibits().unwrap().is_empty());
        home.save_exhibit(Round(10), &me, &[1, -2, i32::MIN]).unwrap();
        home.save_exhibit(Round(9), &you, &[]).unwrap();
        home.save_exhibit(Round(9), &me, &[4]).unwrap();
        assert_eq!(home.exhibits().unwrap(), [(Round(9), me), (Round(9), you), (Round(10), me)]);
        assert_eq!(home.load_exhibit(Round(10), &me).unwrap(), [1, -2, i32::MIN]);
        assert_eq!(home.load_exhibit(Round(10), &you).unwrap_err().kind(), Kind::Missing);
        let path = home.exhibit_path(Round(10), &me);
        let whole = fs::read(&path).unwrap();
        for place in 0..whole.len() {
            let mut forged = whole.clone();
            forged[place] ^= 1;
            for bytes in [&forged, &whole[..place]] {
                fs::write(&path, bytes).unwrap();
                let error = home.load_exhibit(Round(10), &me).unwrap_err();
                assert_eq!(error.kind(), Kind::Corrupt, "{error}");
            }
        }
    }

    #[test]
    fn blocks_of_a_part_come_back_whole_or_not() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::open(directory.path()).unwrap();
        let (me, you) = (MemberId([5; 32]), MemberId([6; 32]));
        let chunks = List::new(vec![Bytes::new(vec![7; 40]).unwrap()]).unwrap();
        let blocks = [BlockData { block: Block(3), chunks, proofs: List::default() }];
        home.save_exhibited_blocks(Round(9), &me, Part(2), &blocks).unwrap();
        let layout = Layout::of_run(&tiny(me, you, 9, 2));
        let kept =
            |member, part| reading::exhibited_blocks(directory.path(), &layout, Round(9), member, part);
        let read = |member, part| kept(member, Part(part)).unwrap();
        assert_eq!(read(&me, 2).as_deref(), Some(&blocks[..]));
        assert_eq!((read(&me, 1), read(&you, 2)), (None, None));
        assert!(home.has_exhibited_blocks(Round(9), &me, Part(2)));
        assert!(!home.has_exhibited_blocks(Round(9), &me, Part(1)));
        assert!(home.exhibits().unwrap().is_empty(), "no whole contribution is kept");
        let path = directory.path().join(EXHIBITS).join(block_exhibit_file(Round(9), &me, Part(2)));
        let mut forged = fs::read(&path).unwrap();
        forged[20] ^= 1;
        fs::write(&path, forged).unwrap();
        let error = kept(&me, Part(2)).unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt, "{error}");
        // Longer than any that a model of this size leaves, and all of it a hole.
        fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(kept(&me, Part(2)).unwrap_err().kind(), Kind::Refused);
    }

    #[test]
    fn evidence_is_what_its_name_says() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::open(directory.path()).unwrap();
        let digest = home.save_evidence(&evidence(5)).unwrap();
        assert_eq!(home.load_evidence(&digest).unwrap(), evidence(5));
        assert_eq!(home.evidence().unwrap(), [digest]);
        assert_eq!(fs::read(home.evidence_path(&digest)).unwrap(), encode(&evidence(5)));
        fs::write(home.evidence_path(&digest), encode(&evidence(6))).unwrap();
        assert_eq!(home.load_evidence(&digest).unwrap_err().kind(), Kind::Corrupt);
        assert_eq!(home.load_evidence(&Digest([9; 32])).unwrap_err().kind(), Kind::Missing);
    }
}
