//! Aggregates by round: `updates/<round>.update`, written and read shard by shard.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use borsh::BorshDeserialize;
use muster_core::codec::encode;
use muster_core::hash::{Domain, Hasher};
use muster_core::ids::{Block, Digest, Round, ShardId};
use muster_core::layout::Layout;
use muster_core::state::{ShardStep, Update, real_bytes};

use crate::error::{Result, StoreError};
use crate::files::{self, Care};
use crate::home::{Home, UPDATES};
use crate::states::{ADVICE, rounds};
use crate::vectors::{PIECE, damaged, read_reals};

impl Home {
    /// Keeps the aggregate of a round, and which steps its Outcome takes: some may be by earlier aggregates, and some of
    /// this one by later Outcomes.
    ///
    /// # Errors
    /// [`crate::error::Kind::Full`]; what the system reports.
    pub fn save_update(&self, round: Round, update: &Update, steps: &[ShardStep]) -> Result<()> {
        let before = encode(&(steps, &update.shards, 4 * update.values.len() as u32));
        let after = encode(&update.present);
        self.write_update(round, (before.len() + 4 * update.values.len() + after.len()) as u64, &|take| {
            take(&before)?;
            update.values.chunks(PIECE).try_for_each(|piece| take(&real_bytes(piece)))?;
            take(&after)
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
        shard: &dyn Fn(ShardId) -> Option<Update>,
    ) -> Result<()> {
        let ranges = || shards.iter().filter_map(|id| layout.shard(*id));
        let bytes = 4 * ranges().map(|range| range.coefficients.len()).sum::<usize>();
        let blocks: usize = ranges().map(|range| range.blocks.len()).sum();
        let before = encode(&(steps, shards, bytes as u32));
        // A list has its length before it, and a mark is a byte.
        self.write_update(round, (before.len() + bytes + 4 + blocks) as u64, &|take| {
            take(&before)?;
            let mut present = Vec::with_capacity(blocks);
            for id in shards {
                let own = shard(*id).filter(|own| own.shards == [*id] && own.fits(layout));
                let own = own.ok_or_else(|| damaged("a shard of the aggregate does not come"))?;
                own.values.chunks(PIECE).try_for_each(|piece| take(&real_bytes(piece)))?;
                present.extend(own.present);
            }
            take(&encode(&present))
        })
    }

    fn write_update(
        &self,
        round: Round,
        bytes: u64,
        pieces: &dyn Fn(files::Take<'_>) -> io::Result<()>,
    ) -> Result<()> {
        files::write_sealed_pieces(&self.update_path(round), Care::Durable, &name(round), bytes, pieces)
    }

    /// The aggregate of a round.
    ///
    /// # Errors
    /// [`crate::error::Kind::Missing`]; [`crate::error::Kind::Corrupt`]; what the system reports.
    pub fn load_update(&self, layout: &Layout, round: Round) -> Result<Update> {
        aggregate(&self.update_path(round), layout, round, &|_| true).map(|(update, _)| update)
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

    /// Little-endian bytes of a block of an aggregate, as they are on the disk: nobody has checked them. None of a block
    /// without a value, and where the file is not there.
    ///
    /// # Errors
    /// [`crate::error::Kind::Corrupt`] for a file that is no aggregate; what the system reports.
    pub fn read_update_block(&self, layout: &Layout, round: Round, block: Block) -> Result<Option<Vec<u8>>> {
        let path = self.update_path(round);
        let mut file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(|error| StoreError::io(&path, &error))?,
        };
        let read = read_block(&mut file, layout, block);
        read.map_err(|error| StoreError::io(&path, &error).advise(ADVICE))
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

/// Where the aggregate of a round is in a directory of aggregates.
pub(crate) fn update_path(directory: &Path, round: Round) -> PathBuf {
    directory.join(format!("{round}.update"))
}

fn name(round: Round) -> String {
    format!("update {round}")
}

/// What an aggregate's file begins with: the steps of its Outcome, and its shards.
struct Head {
    steps: Vec<ShardStep>,
    shards: Vec<ShardId>,
}

impl Head {
    fn read(file: &mut impl Read, layout: &Layout) -> io::Result<Self> {
        let (steps, shards, bytes) = <(Vec<ShardStep>, Vec<ShardId>, u32)>::deserialize_reader(file)?;
        let head = Self { steps, shards };
        // Compared before memory is taken for it.
        if head.values(layout)?.checked_mul(4) != Some(bytes as usize) {
            return Err(damaged("it is of another model"));
        }
        Ok(head)
    }

    fn values(&self, layout: &Layout) -> io::Result<usize> {
        let sizes = self.shards.iter().map(|id| layout.shard(*id).map(|range| range.coefficients.len()));
        let values: Option<usize> = sizes.sum();
        values
            .filter(|_| self.shards.is_sorted_by(|a, b| a < b))
            .ok_or_else(|| damaged("it is of another model"))
    }
}

/// Reads some shards of an aggregate, and which steps its Outcome takes. The checksum is that of the whole file.
pub(crate) fn aggregate(
    path: &Path,
    layout: &Layout,
    round: Round,
    wanted: &dyn Fn(ShardId) -> bool,
) -> Result<(Update, Vec<ShardStep>)> {
    let read = File::open(path).and_then(|file| read_aggregate(file, layout, round, wanted));
    read.map_err(|error| StoreError::io(path, &error).advise(ADVICE))
}

fn read_aggregate(
    mut file: File,
    layout: &Layout,
    round: Round,
    wanted: &dyn Fn(ShardId) -> bool,
) -> io::Result<(Update, Vec<ShardStep>)> {
    let bytes = file.metadata()?.len().saturating_sub(32);
    let mut sum = [0; 32];
    file.read_exact(&mut sum)?;
    let mut file = Summing::new(BufReader::new(file), round, bytes);
    let Head { steps, shards } = Head::read(&mut file, layout)?;
    let mut update = Update::default();
    for id in &shards {
        let values = layout.shard(*id).map_or(0, |range| range.coefficients.len());
        if wanted(*id) {
            update.shards.push(*id);
            update.values.append(&mut read_reals(&mut file, values)?);
        } else {
            let passed = io::copy(&mut (&mut file).take(4 * values as u64), &mut io::sink())?;
            if passed != 4 * values as u64 {
                return Err(damaged("it is cut short"));
            }
        }
    }
    let mut present = <Vec<bool>>::deserialize_reader(&mut file)?.into_iter();
    for id in &shards {
        let blocks = layout.shard(*id).map_or(0, |range| range.blocks.len());
        let own = present.by_ref().take(blocks);
        if wanted(*id) {
            update.present.extend(own);
        } else {
            own.for_each(drop);
        }
    }
    let over = file.file.read(&mut [0])? == 0;
    if !over || present.next().is_some() || !update.fits(layout) || file.sum.finish() != Digest(sum) {
        return Err(damaged("its checksum does not fit"));
    }
    Ok((update, steps))
}

/// What is read, into the checksum that [`files::write_sealed_pieces`] makes.
struct Summing<R> {
    file: R,
    sum: Hasher,
}

impl<R> Summing<R> {
    fn new(file: R, round: Round, bytes: u64) -> Self {
        let sum = Hasher::new(Domain::FILE).part(name(round).as_bytes()).bulk(&bytes.to_le_bytes());
        Self { file, sum }
    }
}

impl<R: Read> Read for Summing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.sum = self.sum.clone().bulk(&buffer[..count]);
        Ok(count)
    }
}

fn read_step(directory: &Path, layout: &Layout, round: Round, step: ShardStep) -> Result<Update> {
    let path = update_path(directory, step.round);
    let (mut update, _) = aggregate(&path, layout, step.round, &|id| id == step.shard)?;
    if update.shards.is_empty() {
        return Err(StoreError::corrupt(&path, "it lacks a shard that takes a step", ADVICE));
    }
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
    let (_, steps) = aggregate(&update_path(&directory, round), layout, round, &|_| false)?;
    let layout = layout.clone();
    Ok(steps.into_iter().map(move |step| read_step(&directory, &layout, round, step)))
}

fn read_block(file: &mut File, layout: &Layout, block: Block) -> io::Result<Option<Vec<u8>>> {
    file.seek(SeekFrom::Start(32))?;
    let mut head = BufReader::new(&mut *file);
    let shards = Head::read(&mut head, layout)?;
    let begin = head.stream_position()?;
    let (Some(id), Some(range)) = (layout.shard_of(block), layout.block(block)) else { return Ok(None) };
    let (Some(place), Some(shard), Some(position)) =
        (shards.shards.iter().position(|held| *held == id), layout.shard(id), layout.position(block))
    else {
        return Ok(None);
    };
    let before = shards.shards.iter().take(place).filter_map(|id| layout.shard(*id));
    let (values, blocks) = before.fold((0, 0), |(values, blocks), shard| {
        (values + shard.coefficients.len(), blocks + shard.blocks.len())
    });
    let mark =
        begin + 4 * shards.values(layout)? as u64 + 4 + (blocks + position - shard.blocks.start) as u64;
    let mut present = [0];
    file.seek(SeekFrom::Start(mark))?;
    file.read_exact(&mut present)?;
    if present == [0] {
        return Ok(None);
    }
    let first = values + range.range.start - shard.coefficients.start;
    let mut bytes = vec![0; 4 * range.range.len()];
    file.seek(SeekFrom::Start(begin + 4 * first as u64))?;
    file.read_exact(&mut bytes)?;
    Ok(Some(bytes))
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
        home.save_update(Round(4), &update, &[step(0, 4), step(1, 4), step(2, 3)]).unwrap();
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
            let error = home.load_step(&layout, Round(4), step(0, 4)).unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupt, "{error}");
            // Unchecked, and without harm.
            let _ = home.read_update_block(&layout, Round(4), Block(0));
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
            let (values, present) = update.shard(&layout, id)?;
            let (values, present) = (values.to_vec(), present.to_vec());
            Some(Update { shards: vec![id], values, present, late: Vec::new() })
        };
        home.save_update(Round(6), &update, &steps([6, 6, 6])).unwrap();
        home.save_update_by_shard(&layout, Round(7), &update.shards, &steps([7, 7, 6]), &shard).unwrap();
        assert_eq!(home.load_update(&layout, Round(7)).unwrap(), update);
        let read: Vec<Update> = home.load_steps(&layout, Round(7)).unwrap().map(Result::unwrap).collect();
        let mut expected: Vec<Update> = update.shards.iter().map(|id| shard(*id).unwrap()).collect();
        expected[2].late = vec![ShardId(3)];
        assert_eq!(read, expected);
        for block in
            (0..layout.all_shards(4).flat_map(|shard| layout.blocks_of(shard)).count() as u32 + 1).map(Block)
        {
            let present = layout.shard_of(block).and_then(|id| {
                let (_, present) = update.shard(&layout, id)?;
                let first = layout.shard(id)?.blocks.start;
                present.get(layout.position(block)? - first).copied()
            });
            let expected = update.block(&layout, block).filter(|_| present == Some(true)).map(real_bytes);
            assert_eq!(home.read_update_block(&layout, Round(7), block).unwrap(), expected, "block {block}");
        }
        assert_eq!(home.read_update_block(&layout, Round(8), Block(0)).unwrap(), None);
        let lacks = |id: ShardId| shard(id).filter(|_| id != ShardId(1));
        let error = home.save_update_by_shard(&layout, Round(8), &update.shards, &[], &lacks).unwrap_err();
        assert!(error.to_string().contains("8.update"), "{error}");
        assert_eq!(home.updates().unwrap(), [6, 7].map(Round));
    }
}
