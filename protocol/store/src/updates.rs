//! Aggregates by round: `updates/<round>.update`, written and read shard by shard.
//!
//! A file begins with the length of its head and the head behind a checksum: the steps of the round's Outcome, and of each
//! shard its number, the lengths of its blocks and a checksum of these. The blocks follow as they travel (AGG-24).

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use borsh::{BorshDeserialize, BorshSerialize};
use muster_core::codec::{decode, encode};
use muster_core::hash::{Domain, Hasher};
use muster_core::ids::{Block, Digest, Round, ShardId};
use muster_core::layout::Layout;
use muster_core::limits::SHARDS;
use muster_core::rounding::{BlockValues, ResultGrid};
use muster_core::state::{ShardStep, Update, real_bytes, reals};

use crate::error::{Result, StoreError};
use crate::files::{self, Care};
use crate::home::{Home, UPDATES};
use crate::regular;
use crate::states::{ADVICE, rounds};
use crate::vectors::damaged;

/// Bytes of a head at most, checksum included, beside its blocks: far more than those of as many shards as there can be.
const HEAD_BYTES: u64 = 128 * SHARDS as u64;
/// Bytes of a coefficient as it travels, at most: far more than it takes.
const PACKED: u64 = 16;
/// Bytes of a block in a head, at most.
const BLOCK_BYTES: u64 = 5;

impl Home {
    /// Keeps the aggregate of a round, and which steps its Outcome takes: some may be by earlier aggregates, and some of
    /// this one by later Outcomes.
    ///
    /// # Errors
    /// [`crate::error::Kind::Full`]; [`crate::error::Kind::Refused`] when it is of another model; what the system reports.
    pub fn save_update(
        &self,
        layout: &Layout,
        round: Round,
        update: &Update,
        steps: &[ShardStep],
    ) -> Result<()> {
        self.write_update(layout, round, steps, &update.shards, &|id, take| {
            update.shard(layout, id).map(|blocks| take(blocks, update.behind))
        })
    }

    /// The same of an aggregate that is made shard by shard, with these shards. Each is asked for twice.
    ///
    /// # Errors
    /// [`crate::error::Kind::Refused`] when one does not come; as [`Self::save_update`].
    pub fn save_update_by_shard(
        &self,
        layout: &Layout,
        round: Round,
        shards: &[ShardId],
        steps: &[ShardStep],
        shard: &dyn Fn(ShardId) -> Option<Arc<Update>>,
    ) -> Result<()> {
        self.write_update(layout, round, steps, shards, &|id, take| {
            let own = shard(id).filter(|own| own.shards == [id] && own.fits(layout))?;
            Some(take(&own.blocks, own.behind))
        })
    }

    fn write_update(
        &self,
        layout: &Layout,
        round: Round,
        steps: &[ShardStep],
        shards: &[ShardId],
        shard: &dyn Fn(ShardId, Take<'_>) -> Option<io::Result<()>>,
    ) -> Result<()> {
        let path = self.update_path(round);
        let mut head = Head { steps: steps.to_vec(), behind: false, shards: Vec::new() };
        for id in shards {
            let mut kept = None;
            let _ = shard(*id, &mut |blocks, behind| {
                head.behind |= behind;
                kept = Some((blocks.iter().map(Kept::of).collect(), checksum(round, blocks)));
                Ok(())
            });
            let cause = "a shard of the aggregate does not come, or is of another model";
            let (blocks, sum) =
                kept.ok_or_else(|| StoreError::refused(&path, cause, "nothing was written"))?;
            head.shards.push(KeptShard { id: *id, blocks, sum });
        }
        let head = files::seal(&name(round), &encode(&head));
        files::write(&path, Care::Durable, |file| {
            let lacks = || damaged("a shard of the aggregate comes only once");
            file.write_all(&(head.len() as u64).to_le_bytes())?;
            file.write_all(&head)?;
            for id in shards {
                let mut write = |blocks: &[Option<Arc<BlockValues>>], _| {
                    blocks.iter().flatten().try_for_each(|block| file.write_all(&bytes(block)))
                };
                shard(*id, &mut write).ok_or_else(lacks)??;
            }
            Ok(())
        })?;
        // What cannot be read again would be missed at the next start only.
        AggregateFile::open(&self.at(UPDATES), layout, round).map(drop)
    }

    /// The aggregate of a round.
    ///
    /// # Errors
    /// [`crate::error::Kind::Missing`]; [`crate::error::Kind::Corrupt`]; what the system reports.
    pub fn load_update(&self, layout: &Layout, round: Round) -> Result<Update> {
        AggregateFile::open(&self.at(UPDATES), layout, round)?.all()
    }

    /// One shard of it.
    ///
    /// # Errors
    /// As [`Self::load_update`].
    pub fn load_update_of(&self, layout: &Layout, round: Round, shard: ShardId) -> Result<Update> {
        AggregateFile::open(&self.at(UPDATES), layout, round)?.shard(shard)
    }

    /// What the Outcome of a round applied to one shard, of its own aggregate or of an earlier one.
    ///
    /// # Errors
    /// As [`Self::load_update`].
    pub fn load_step(&self, layout: &Layout, round: Round, step: ShardStep) -> Result<Update> {
        read_step(&self.at(UPDATES), layout, round, step)
    }

    /// What the Outcome of a round applied, of its own aggregate and of earlier ones, shard by shard.
    ///
    /// # Errors
    /// As [`Self::load_update`], here and of any of these aggregates.
    pub fn load_steps(
        &self,
        layout: &Layout,
        round: Round,
    ) -> Result<impl Iterator<Item = Result<Update>> + use<>> {
        steps(self.at(UPDATES), layout, round)
    }

    /// The file of a round's aggregate, to read blocks of it; none where it is not there.
    ///
    /// # Errors
    /// [`crate::error::Kind::Corrupt`] for a file that is no aggregate; what the system reports.
    pub fn open_update<'a>(&self, layout: &'a Layout, round: Round) -> Result<Option<AggregateFile<'a>>> {
        match AggregateFile::open(&self.at(UPDATES), layout, round) {
            Err(error) if error.kind() == crate::error::Kind::Missing => Ok(None),
            file => file.map(Some),
        }
    }

    /// Rounds whose aggregates are kept, in order.
    ///
    /// # Errors
    /// What the system reports.
    pub fn updates(&self) -> Result<Vec<Round>> {
        rounds(&self.at(UPDATES), ".update")
    }

    /// Drops the aggregates that are not to be kept.
    ///
    /// # Errors
    /// What the system reports.
    pub fn prune_updates(&self, keep: &dyn Fn(Round) -> bool) -> Result<()> {
        let mut dropped = self.updates()?.into_iter().filter(|round| !keep(*round));
        dropped.try_for_each(|round| files::remove(&self.update_path(round)))
    }

    fn update_path(&self, round: Round) -> PathBuf {
        update_path(&self.at(UPDATES), round)
    }
}

/// What takes the blocks of a shard, and whether it is behind.
type Take<'a> = &'a mut dyn FnMut(&[Option<Arc<BlockValues>>], bool) -> io::Result<()>;

/// Where the aggregate of a round is in a directory of aggregates.
pub(crate) fn update_path(directory: &Path, round: Round) -> PathBuf {
    directory.join(format!("{round}.update"))
}

fn name(round: Round) -> String {
    format!("update {round}")
}

/// What a file has of a block.
fn bytes(values: &BlockValues) -> Cow<'_, [u8]> {
    match values.bytes() {
        Some(bytes) => Cow::Borrowed(bytes),
        None => Cow::Owned(real_bytes(&values.reals()).into_owned()),
    }
}

/// As [`files::checksum`] has it, of the bytes of a shard.
fn checksum(round: Round, blocks: &[Option<Arc<BlockValues>>]) -> Digest {
    let all = || blocks.iter().flatten();
    let length: u64 = all().map(|block| block.size() as u64).sum();
    let sum = Hasher::new(Domain::FILE).part(name(round).as_bytes()).bulk(&length.to_le_bytes());
    all().fold(sum, |sum, block| sum.bulk(&bytes(block))).finish()
}

/// What a file begins with: the steps of the round's Outcome, its units, its shards in order.
#[derive(BorshSerialize, BorshDeserialize)]
struct Head {
    steps: Vec<ShardStep>,
    /// As [`Update::behind`].
    behind: bool,
    shards: Vec<KeptShard>,
}

/// A shard in a file.
#[derive(BorshSerialize, BorshDeserialize)]
struct KeptShard {
    id: ShardId,
    blocks: Vec<Kept>,
    sum: Digest,
}

/// A block in a file.
#[derive(Clone, Copy, BorshSerialize, BorshDeserialize)]
enum Kept {
    /// It has no result.
    Absent,
    /// As it travels, in so many bytes.
    Packed(u32),
    /// As numbers.
    Reals,
}

impl Kept {
    fn of(block: &Option<Arc<BlockValues>>) -> Self {
        match block.as_deref().map(BlockValues::bytes) {
            None => Self::Absent,
            Some(None) => Self::Reals,
            Some(Some(bytes)) => Self::Packed(bytes.len() as u32),
        }
    }

    /// Bytes behind the head, of a block of so many coefficients.
    fn bytes(self, count: usize) -> u64 {
        match self {
            Self::Absent => 0,
            Self::Packed(bytes) => bytes.into(),
            Self::Reals => 4 * count as u64,
        }
    }
}

impl KeptShard {
    /// Its blocks with their coefficients, and where each begins; none where it is of another model.
    fn blocks<'a>(&'a self, layout: &'a Layout) -> Option<Vec<(Block, Kept, usize, u64)>> {
        let mut first = 0;
        let blocks: Vec<Block> = layout.update_blocks(self.id).collect();
        let place = |(block, kept): (&Block, &Kept)| {
            let (count, begin) = (layout.block(*block)?.range.len(), first);
            let bytes = kept.bytes(count);
            first += Some(bytes).filter(|bytes| *bytes <= PACKED * (count as u64 + 1))?;
            Some((*block, *kept, count, begin))
        };
        layout.shard(self.id).filter(|_| blocks.len() == self.blocks.len())?;
        blocks.iter().zip(&self.blocks).map(place).collect()
    }

    /// Bytes behind the head.
    fn bytes(&self, layout: &Layout) -> Option<u64> {
        self.blocks(layout)?.last().map(|(_, kept, count, begin)| begin + kept.bytes(*count))
    }
}

/// The file of an aggregate.
pub struct AggregateFile<'a> {
    path: PathBuf,
    file: File,
    layout: &'a Layout,
    round: Round,
    head: Head,
    /// Bytes before the first shard.
    begin: u64,
}

impl<'a> AggregateFile<'a> {
    pub(crate) fn open(directory: &Path, layout: &'a Layout, round: Round) -> Result<Self> {
        let path = update_path(directory, round);
        // Its length is compared with the layout's.
        let mut file = regular::open(&path, u64::MAX).map_err(|error| error.advise(ADVICE))?;
        let read = read_head(&mut file, layout, round);
        let (head, begin) = read.map_err(|error| StoreError::io(&path, &error).advise(ADVICE))?;
        Ok(Self { path, file, layout, round, head, begin })
    }

    /// All of it.
    pub(crate) fn all(mut self) -> Result<Update> {
        let mut all = Update { behind: self.head.behind, ..Update::default() };
        for id in self.head.shards.iter().map(|shard| shard.id).collect::<Vec<_>>() {
            let Update { mut shards, mut blocks, .. } = self.shard(id)?;
            all.shards.append(&mut shards);
            all.blocks.append(&mut blocks);
        }
        Ok(all)
    }

    fn shard(&mut self, id: ShardId) -> Result<Update> {
        let read = self.read_shard(id);
        read.map_err(|error| StoreError::io(&self.path, &error).advise(ADVICE))
    }

    fn read_shard(&mut self, id: ShardId) -> io::Result<Update> {
        let lacks = || damaged("it lacks a shard that takes a step");
        let (first, shard) = self.find(id).ok_or_else(lacks)?;
        let (sum, places) = (shard.sum, shard.blocks(self.layout).ok_or_else(lacks)?);
        self.file.seek(SeekFrom::Start(first))?;
        let mut file = BufReader::new(&mut self.file);
        let read = |(block, kept, count, _)| read_block(&mut file, self.layout, block, kept, count);
        let blocks = places.into_iter().map(read);
        let blocks: Vec<_> = blocks.map(|read| Ok(read?.map(Arc::new))).collect::<io::Result<_>>()?;
        if checksum(self.round, &blocks) != sum {
            return Err(damaged("its checksum does not fit"));
        }
        Ok(Update { shards: vec![id], blocks, late: Vec::new(), behind: self.head.behind })
    }

    /// Where a shard begins, and what is said of it.
    fn find(&self, id: ShardId) -> Option<(u64, &KeptShard)> {
        let mut first = self.begin;
        for shard in &self.head.shards {
            if shard.id == id {
                return Some((first, shard));
            }
            first += shard.bytes(self.layout)?;
        }
        None
    }

    /// The values of a block as they are there: nobody has compared them with a checksum. None of a block without a value.
    ///
    /// # Errors
    /// [`crate::error::Kind::Corrupt`] for what is no result; what the system reports.
    pub fn block(&mut self, block: Block) -> Result<Option<BlockValues>> {
        let read = self.read_block(block);
        read.map_err(|error| StoreError::io(&self.path, &error).advise(ADVICE))
    }

    fn read_block(&mut self, block: Block) -> io::Result<Option<BlockValues>> {
        let layout = self.layout;
        let Some((first, shard)) = layout.shard_of(block).and_then(|id| self.find(id)) else {
            return Ok(None);
        };
        let places = shard.blocks(layout).unwrap_or_default();
        let place = places.into_iter().find(|(of, ..)| *of == block);
        let Some((_, kept, count, begin)) = place else { return Ok(None) };
        self.file.seek(SeekFrom::Start(first + begin))?;
        read_block(&mut self.file, layout, block, kept, count)
    }
}

/// Reads a block; none of one without a result.
fn read_block(
    file: &mut dyn Read,
    layout: &Layout,
    block: Block,
    kept: Kept,
    count: usize,
) -> io::Result<Option<BlockValues>> {
    // The file is as long as its head says.
    let mut bytes = vec![0; kept.bytes(count) as usize];
    file.read_exact(&mut bytes)?;
    match kept {
        Kept::Absent => Ok(None),
        Kept::Reals => Ok(Some(BlockValues::raw(reals(&bytes)))),
        Kept::Packed(_) => {
            // Whoever made the file may be a stranger.
            let read = BlockValues::read(ResultGrid::of(layout, block), &bytes, count);
            let read = read.ok().filter(|(_, _, rest)| rest.is_empty());
            read.map(|(values, ..)| Some(values)).ok_or_else(|| damaged("a block of it is no result"))
        }
    }
}

/// Reads what a file begins with, and how many bytes that is; the file must be as long as that says.
fn read_head(file: &mut File, layout: &Layout, round: Round) -> io::Result<(Head, u64)> {
    let mut length = [0; 8];
    file.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    // Compared before memory is taken for it.
    let blocks =
        layout.all_shards(layout.rows()).map(|id| layout.update_blocks(id).count() as u64).sum::<u64>();
    if length > HEAD_BYTES + BLOCK_BYTES * blocks {
        return Err(damaged("it does not begin like an aggregate"));
    }
    let mut head = vec![0; length as usize];
    file.read_exact(&mut head)?;
    let head = files::unseal(&name(round), &head).and_then(|head| decode::<Head>(head).ok());
    let head = head.ok_or_else(|| damaged("the checksum of its head does not fit"))?;
    let begin = 8 + length;
    let bytes: Option<u64> = head.shards.iter().map(|shard| shard.bytes(layout)).sum();
    let bytes = bytes.filter(|_| head.shards.is_sorted_by(|one, next| one.id < next.id));
    let bytes = bytes.ok_or_else(|| damaged("it is of another model"))?;
    if file.metadata()?.len() != begin + bytes {
        return Err(damaged("it has another length"));
    }
    Ok((head, begin))
}

fn read_step(directory: &Path, layout: &Layout, round: Round, step: ShardStep) -> Result<Update> {
    let mut update = AggregateFile::open(directory, layout, step.round)?.shard(step.shard)?;
    if step.round != round {
        update.late = update.shards.clone();
    }
    Ok(update)
}

/// What the Outcome of a round applied, from the files of its aggregate and of earlier ones, shard by shard.
pub(crate) fn steps(
    directory: PathBuf,
    layout: &Layout,
    round: Round,
) -> Result<impl Iterator<Item = Result<Update>> + use<>> {
    let steps = AggregateFile::open(&directory, layout, round)?.head.steps;
    let layout = layout.clone();
    Ok(steps.into_iter().map(move |step| read_step(&directory, &layout, round, step)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use muster_core::ids::MemberId;
    use muster_core::manifest::fixture::{mixture, tiny};

    use super::*;
    use crate::error::Kind;

    /// A mixture with four rows, and an aggregate of its trunk, of row 0 and of row 2, the last without its first block.
    fn aggregate() -> (Layout, Update) {
        let mut model = tiny(MemberId([1; 32]), MemberId([2; 32]), 1, 1).model;
        mixture(&mut model, 4);
        let layout = Layout::of(&model);
        let shards = [0, 1, 3].map(ShardId);
        let mut update = Update::empty(&layout, shards);
        let blocks: Vec<Block> = shards.into_iter().flat_map(|shard| layout.blocks_of(shard)).collect();
        let left_out = layout.blocks_of(ShardId(3)).next();
        for (number, block) in blocks.into_iter().enumerate().filter(|(_, block)| Some(*block) != left_out) {
            let length = layout.block(block).unwrap().range.len();
            let values: Vec<f32> = (0..length).map(|place| (number * 1000 + place) as f32 * 0.5).collect();
            update.put(&layout, block, &values).unwrap();
        }
        (layout, update)
    }

    fn home() -> (tempfile::TempDir, Home) {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::open(directory.path()).unwrap();
        (directory, home)
    }

    #[test]
    fn aggregates_come_back_whole_or_not() {
        let (_directory, home) = home();
        let (layout, update) = aggregate();
        let step = |shard, round| ShardStep { shard: ShardId(shard), round: Round(round) };
        home.save_update(&layout, Round(4), &update, &[step(0, 4), step(1, 4), step(2, 3)]).unwrap();
        assert_eq!(home.load_update(&layout, Round(4)).unwrap(), update);
        let path = home.at("updates/4.update");
        let whole = fs::read(&path).unwrap();
        let damaged = (0..whole.len()).step_by(7).map(|length| whole[..length].to_vec());
        let changed = (0..whole.len()).step_by(5).map(|place| {
            let mut forged = whole.clone();
            forged[place] ^= 1;
            forged
        });
        let longer = [whole.as_slice(), b"x"].concat();
        for bytes in damaged.chain(changed).chain([longer]) {
            fs::write(&path, &bytes).unwrap();
            let error = home.load_update(&layout, Round(4)).unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupt, "{error}");
            // What is read of it is right, whatever is wrong elsewhere.
            match home.load_update_of(&layout, Round(4), ShardId::TRUNK) {
                Ok(trunk) => assert_eq!(trunk.block(&layout, Block(0)), update.block(&layout, Block(0))),
                Err(error) => assert_eq!(error.kind(), Kind::Corrupt, "{error}"),
            }
            // Unchecked, and without harm.
            let _ = home.open_update(&layout, Round(4)).and_then(|file| file.unwrap().block(Block(0)));
        }
        fs::write(home.at("updates/5.update"), &whole).unwrap();
        assert_eq!(home.load_update(&layout, Round(5)).unwrap_err().kind(), Kind::Corrupt);
        assert_eq!(home.updates().unwrap(), [Round(4), Round(5)]);
        home.prune_updates(&|_| false).unwrap();
        assert_eq!(home.load_update(&layout, Round(4)).unwrap_err().kind(), Kind::Missing);
    }

    #[test]
    fn shards_are_written_and_read_one_by_one() {
        let (_directory, home) = home();
        let (layout, update) = aggregate();
        let steps = |rounds: [u32; 3]| {
            let shards = update.shards.iter().zip(rounds);
            shards.map(|(shard, round)| ShardStep { shard: *shard, round: Round(round) }).collect::<Vec<_>>()
        };
        let shard = |id: ShardId| {
            let blocks = update.shard(&layout, id)?.to_vec();
            Some(Arc::new(Update { shards: vec![id], blocks, ..Update::default() }))
        };
        home.save_update(&layout, Round(6), &update, &steps([6, 6, 6])).unwrap();
        home.save_update_by_shard(&layout, Round(7), &update.shards, &steps([7, 7, 6]), &shard).unwrap();
        assert_eq!(home.load_update(&layout, Round(7)).unwrap(), update);
        let read: Vec<Update> = home.load_steps(&layout, Round(7)).unwrap().map(Result::unwrap).collect();
        let mut expected: Vec<Update> =
            update.shards.iter().map(|id| Update::clone(&shard(*id).unwrap())).collect();
        expected[2].late = vec![ShardId(3)];
        assert_eq!(read, expected);
        let mut file = home.open_update(&layout, Round(7)).unwrap().unwrap();
        for block in
            (0..layout.all_shards(4).flat_map(|shard| layout.blocks_of(shard)).count() as u32 + 1).map(Block)
        {
            let expected = update.held(&layout, block).map(|held| BlockValues::clone(held));
            assert_eq!(file.block(block).unwrap(), expected, "block {block}");
        }
        assert!(home.open_update(&layout, Round(8)).unwrap().is_none());
        let lacks = |id: ShardId| shard(id).filter(|_| id != ShardId(1));
        let error = home.save_update_by_shard(&layout, Round(8), &update.shards, &[], &lacks).unwrap_err();
        assert!(error.kind() == Kind::Refused && error.to_string().contains("8.update"), "{error}");
        assert_eq!(home.updates().unwrap(), [6, 7].map(Round));
    }
}
