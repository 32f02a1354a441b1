//! The words of a load, as fio has them, and what they come to on a given volume and number of
//! cores.
use super::job::{JobPlan, JobRules, Verify};
use super::pattern::{Region, Shape};
use super::sizes::{SizeMix, Sizes};
use super::verify::Stamps;
use super::worker::{Task, buffer_bytes};
use crate::limits::{ARENA_BYTES_MAX, IODEPTH_MAX, JOBS_MAX, VERIFY_BLOCKS_MAX};
use clap::{Args, FromArgMatches};
use engine::host::VolumeInfo;
use serde_json::{Value, json};
use std::sync::Arc;
use terminal::exit::Usage;
use terminal::units::{format_bytes, parse_count, parse_rate, parse_seconds, parse_size};

/// fio's `--rw`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Rw {
    /// Sequential reads
    Read,
    /// Sequential writes
    Write,
    /// Random reads
    Randread,
    /// Random writes
    Randwrite,
    /// Sequential reads and writes
    #[value(name = "rw", alias = "readwrite")]
    Mixed,
    /// Random reads and writes
    #[value(name = "randrw")]
    RandomMixed,
}

/// A load in fio's words.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Load")]
pub struct Words {
    /// Operation; all but read and randread DESTROY the data on the volume
    #[arg(long, visible_alias = "readwrite", value_enum, default_value = "read")]
    pub rw: Rw,
    /// Block size, or one for reads and one for writes: 4k or 4k,64k; multiples of 512, 512 to 32m
    #[arg(long, value_name = "SIZE", default_value = "4k", allow_hyphen_values = true,
          value_parser = Sizes::parse_bs)]
    pub bs: Sizes,
    /// Block sizes in percent: 4k/75:64k/25; another split for writes behind a comma
    #[arg(long, value_name = "SPLIT", conflicts_with = "bs", value_parser = Sizes::parse_bssplit)]
    pub bssplit: Option<Sizes>,
    /// Reads in a mix of reads and writes, 0 to 100 percent
    #[arg(long, value_name = "PERCENT", default_value = "50",
          allow_hyphen_values = true,
          value_parser = clap::value_parser!(u8).range(0..=100))]
    pub rwmixread: u8,
    /// I/Os that one job keeps outstanding, 1 to 65535
    #[arg(long, value_name = "N", default_value = "1",
          allow_hyphen_values = true,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(IODEPTH_MAX)))]
    pub iodepth: u32,
    /// Jobs, 1 to 1024, dealt out to the cores in turn [default: one per core]
    #[arg(long, value_name = "N",
          allow_hyphen_values = true,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(JOBS_MAX)))]
    pub numjobs: Option<u32>,
    /// Seconds, or with a unit [default: 10 s; with --size or --verify until each job has done its
    /// part of the size once]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true,
          value_parser = parse_runtime)]
    pub runtime: Option<u64>,
    /// First byte to touch
    #[arg(long, value_name = "SIZE", default_value = "0", allow_hyphen_values = true,
          value_parser = parse_size)]
    pub offset: u64,
    /// Bytes to touch [default: to the end of the volume]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true,
          value_parser = parse_size)]
    pub size: Option<u64>,
    /// I/Os per second of each job at most; 0 = no limit (k = 1000)
    #[arg(long, alias = "rate_iops", value_name = "N", default_value = "0",
          allow_hyphen_values = true, value_parser = parse_count)]
    pub rate_iops: u64,
    /// Bytes per second of each job at most; 0 = no limit
    #[arg(long, value_name = "RATE", default_value = "0",
          allow_hyphen_values = true, value_parser = parse_rate)]
    pub rate: u64,
    /// Write stamped blocks and check what is read. After writing, everything written is read
    /// back; with --rw read or randread, what an earlier --verify wrote is checked (a stamp covers
    /// what all block sizes are multiples of, up to 4k: that must be the same)
    #[arg(long)]
    pub verify: bool,
    /// Seed of offsets and sizes
    #[arg(
        long,
        visible_alias = "randseed",
        value_name = "N",
        default_value = "1"
    )]
    pub seed: u64,
    /// Run so long before measuring
    #[arg(long, visible_alias = "ramp_time", value_name = "TIME", default_value = "0",
          allow_hyphen_values = true, value_parser = parse_seconds)]
    pub ramp_time: u64,
}

impl Words {
    /// Words of a program.
    ///
    /// # Errors
    /// They are none.
    pub fn of(text: &str) -> anyhow::Result<Self> {
        let command = Self::augment_args(clap::Command::new("load").no_binary_name(true));
        Ok(Self::from_arg_matches(
            &command.try_get_matches_from(text.split(' '))?,
        )?)
    }

    /// Why a load that was ended early has not done what it was for; `None`: it has shown its
    /// figures, which is all that it was for.
    pub fn unverified(&self, interrupted: bool) -> Option<String> {
        let is_for_that = self.verify && interrupted;
        is_for_that.then(|| "interrupted: not all was verified that was to be".to_owned())
    }
}

fn parse_runtime(text: &str) -> Result<u64, String> {
    match parse_seconds(text).map_err(|error| error.to_string())? {
        0 => Err(format!(
            "\"{text}\": nothing is measured in no time; leave it out and give --size to end when \
             that is done"
        )),
        ns => Ok(ns),
    }
}

/// Runtime where neither `--runtime`, `--size` nor `--verify` says when to end.
const RUNTIME_NS: u64 = 10_000_000_000;

impl Words {
    /// Reads in percent.
    pub fn read_percent(&self) -> u8 {
        match self.rw {
            Rw::Read | Rw::Randread => 100,
            Rw::Write | Rw::Randwrite => 0,
            Rw::Mixed | Rw::RandomMixed => self.rwmixread,
        }
    }

    /// Random offsets.
    pub fn random(&self) -> bool {
        matches!(self.rw, Rw::Randread | Rw::Randwrite | Rw::RandomMixed)
    }

    /// The order's name in results: random or sequential.
    pub fn order(&self) -> &'static str {
        match self.random() {
            true => "random",
            false => "sequential",
        }
    }

    /// Parameters of the load in JSON results. Block sizes are bytes.
    pub fn json(&self, cores: usize) -> Value {
        let jobs = self.numjobs.unwrap_or(cores as u32);
        let sizes = |mix: &SizeMix| -> Value {
            let parts = mix.parts();
            let parts = parts.map(|(bytes, percent)| json!({"bytes": bytes, "percent": percent}));
            parts.collect()
        };
        json!({
            "op": self.op(), "order": self.order(), "read_percent": self.read_percent(),
            "read_sizes": sizes(&self.sizes().read), "write_sizes": sizes(&self.sizes().write),
            "iodepth": self.iodepth, "numjobs": jobs,
            "outstanding": jobs.saturating_mul(self.iodepth), "cores": cores,
            "verify": self.verify,
        })
    }

    /// The operation's name in results: read, write or mixed.
    pub fn op(&self) -> &'static str {
        match self.read_percent() {
            100 => "read",
            0 => "write",
            _ => "mixed",
        }
    }

    /// Sizes in force.
    pub fn sizes(&self) -> &Sizes {
        self.bssplit.as_ref().unwrap_or(&self.bs)
    }

    /// Jobs on `cores` cores.
    ///
    /// # Errors
    /// Fewer jobs than cores.
    pub fn jobs(&self, cores: usize) -> anyhow::Result<u32> {
        let jobs = self.numjobs.unwrap_or(cores as u32);
        if (jobs as usize) < cores {
            return Err(Usage::error(format!(
                "--numjobs {jobs} leaves some of {cores} cores without a job: give fewer --cores"
            )));
        }
        Ok(jobs)
    }

    /// Most outstanding I/Os and bytes of arena of one of `cores` cores.
    ///
    /// # Errors
    /// More buffers than [`ARENA_BYTES_MAX`].
    pub fn buffers(&self, cores: usize) -> anyhow::Result<(u32, u64)> {
        let jobs = self.jobs(cores)?.div_ceil(cores as u32);
        let outstanding = u64::from(jobs) * u64::from(self.iodepth);
        let bytes = outstanding * u64::from(buffer_bytes(self.sizes().largest()));
        if bytes > ARENA_BYTES_MAX {
            return Err(Usage::error(format!(
                "{outstanding} outstanding I/Os of {} on one core need {} of buffers; {} at most: \
                 give a smaller --iodepth, --numjobs or --bs, or more --cores",
                format_bytes(self.sizes().largest().into()),
                format_bytes(bytes),
                format_bytes(ARENA_BYTES_MAX),
            )));
        }
        Ok((outstanding as u32, bytes))
    }

    /// The task of each core on a volume.
    ///
    /// # Errors
    /// Usage: what the words ask for does not fit the volume.
    pub fn tasks(
        &self,
        volume: u16,
        info: &VolumeInfo,
        paths: &Arc<[String]>,
        cores: usize,
    ) -> anyhow::Result<Vec<Task>> {
        self.check_sizes(info)?;
        let jobs = self.jobs(cores)?;
        let regions = self.regions(info, jobs)?;
        let block = self.sizes().unit().min(4096);
        let largest = regions.iter().map(|region| region.bytes()).max();
        let blocks = largest.unwrap_or(0) / u64::from(block) * u64::from(jobs);
        if self.verify && blocks > VERIFY_BLOCKS_MAX {
            return Err(Usage::error(format!(
                "--verify keeps a number for each of {blocks} blocks; {VERIFY_BLOCKS_MAX} at most: \
                 give a smaller --size"
            )));
        }
        let once = self.runtime.is_none() && (self.size.is_some() || self.verify);
        let run = uuid::Uuid::new_v4().as_u64_pair().0;
        let stamps = Stamps { run };
        let rules = JobRules {
            shape: Shape {
                random: self.random(),
                read_percent: self.read_percent(),
                sizes: self.sizes().clone(),
            },
            iodepth: self.iodepth,
            once,
            rate_iops: self.rate_iops,
            rate_bytes: self.rate,
            verify: self.verify.then_some(Verify { stamps, block }),
        };
        let plan = |(n, region): (u64, Region)| {
            let seed = self.seed.wrapping_add(n << 32);
            JobPlan { region, seed }
        };
        let plans: Vec<_> = (0..).zip(regions).map(plan).collect();
        let task = |core: usize| Task {
            volume,
            paths: Arc::clone(paths),
            rules: rules.clone(),
            jobs: plans.iter().copied().skip(core).step_by(cores).collect(),
            warmup_ns: self.ramp_time,
            runtime_ns: (!once).then(|| self.runtime.unwrap_or(RUNTIME_NS)),
        };
        Ok((0..cores).map(task).collect())
    }

    fn check_sizes(&self, info: &VolumeInfo) -> anyhow::Result<()> {
        let (unit, largest) = (self.sizes().unit(), self.sizes().largest());
        let block = 1_u64 << info.block_shift;
        if !u64::from(unit).is_multiple_of(block) {
            return Err(Usage::error(format!(
                "the volume has blocks of {block} bytes: block sizes must be multiples of that"
            )));
        }
        if largest > info.transfer_max {
            return Err(Usage::error(format!(
                "the largest I/O of the volume is {}: {} is too large a block size",
                format_bytes(info.transfer_max.into()),
                format_bytes(largest.into()),
            )));
        }
        Ok(())
    }

    /// Each job's part. Jobs that check data or go one after the other have parts of their own;
    /// random ones without a check share all of it.
    fn regions(&self, info: &VolumeInfo, jobs: u32) -> anyhow::Result<Vec<Region>> {
        let unit = u64::from(self.sizes().unit());
        if !self.offset.is_multiple_of(unit) {
            return Err(Usage::error(format!(
                "--offset {} is not a multiple of {unit}, as the block sizes are",
                self.offset
            )));
        }
        let room = info.bytes.saturating_sub(self.offset);
        let size = self.size.unwrap_or(room);
        if size > room || room == 0 {
            return Err(Usage::error(format!(
                "--offset and --size reach behind the end of the volume, which has {}",
                format_bytes(info.bytes)
            )));
        }
        let shared = self.random() && !self.verify;
        let parts = if shared { 1 } else { u64::from(jobs) };
        let part = size / parts / unit * unit;
        if part < u64::from(self.sizes().largest()) {
            return Err(Usage::error(format!(
                "{} divided among {parts} jobs leave no room for an I/O of {}",
                format_bytes(size),
                format_bytes(self.sizes().largest().into())
            )));
        }
        let region = |n: u64| {
            let begin = self.offset + n % parts * part;
            let end = begin + part;
            Region { begin, end }
        };
        Ok((0..u64::from(jobs)).map(region).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        words: Words,
    }

    const INFO: VolumeInfo = VolumeInfo {
        bytes: 1 << 30,
        block_shift: 9,
        transfer_max: 1 << 20,
        read_only: false,
    };

    fn words(text: &str) -> Words {
        Line::try_parse_from(std::iter::once("braid").chain(text.split_whitespace()))
            .map(|line| line.words)
            .unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn tasks(text: &str, cores: usize) -> anyhow::Result<Vec<Task>> {
        words(text).tasks(0, &INFO, &vec!["mem:1GiB".to_owned()].into(), cores)
    }

    #[test]
    fn fios_words_are_understood() {
        let words = words(
            "--rw randrw --bssplit 4k/75:64k/25 --rwmixread 70 --iodepth 32 --numjobs 4 \
             --runtime 5 --size 1m --offset 1m --rate_iops 10k --rate 1m --verify --randseed 3",
        );
        assert_eq!(
            (words.read_percent(), words.random(), words.op()),
            (70, true, "mixed")
        );
        assert_eq!(
            (words.runtime, words.rate_iops, words.seed),
            (Some(5_000_000_000), 10_000, 3)
        );
        assert_eq!(words.sizes().largest(), 65_536);
    }

    #[test]
    fn jobs_are_dealt_out_to_the_cores() {
        let tasks = tasks("--rw write --numjobs 3 --size 12m", 2).unwrap();
        let begins = |task: &Task| {
            task.jobs
                .iter()
                .map(|job| job.region.begin)
                .collect::<Vec<_>>()
        };
        assert_eq!(begins(&tasks[0]), [0, 8 << 20]);
        assert_eq!(begins(&tasks[1]), [4 << 20]);
        assert!(tasks[0].rules.once);
        assert_ne!(tasks[0].jobs[0].seed, tasks[0].jobs[1].seed);
    }

    #[test]
    fn only_random_jobs_without_a_check_share_their_region() {
        let shared = tasks("--rw randwrite --numjobs 2", 1).unwrap();
        assert_eq!(
            shared[0].jobs[1].region,
            Region {
                begin: 0,
                end: 1 << 30
            }
        );
        assert_eq!(shared[0].runtime_ns, Some(RUNTIME_NS));
        let apart = tasks("--rw randwrite --numjobs 2 --verify", 1).unwrap();
        assert_eq!(
            apart[0].jobs[1].region,
            Region {
                begin: 1 << 29,
                end: 1 << 30
            }
        );
        assert_eq!(apart[0].runtime_ns, None);
    }

    #[test]
    fn what_does_not_fit_the_volume_is_a_usage_error() {
        for (text, part) in [
            ("--size 2g", "reach behind the end"),
            ("--offset 2g", "reach behind the end"),
            ("--offset 512", "not a multiple of 4096"),
            ("--bs 2m", "largest I/O of the volume is 1 MiB"),
            ("--rw write --numjobs 100 --size 64k", "no room for an I/O"),
            (
                "--rw randread --numjobs 1 --iodepth 1 --size 512",
                "no room for an I/O",
            ),
        ] {
            let error = tasks(text, 1).expect_err(text);
            assert!(error.is::<Usage>());
            assert!(error.to_string().contains(part), "{text}: {error}");
        }
        assert!(words("--numjobs 1").jobs(2).is_err());
        assert!(words("--iodepth 65535 --bs 1m").buffers(1).is_err());
        assert_eq!(
            words("--iodepth 32 --numjobs 3 --bs 512")
                .buffers(2)
                .unwrap(),
            (64, 64 << 12)
        );
    }

    #[test]
    fn stamped_blocks_are_what_all_sizes_are_multiples_of() {
        let block = |text: &str| tasks(text, 1).unwrap()[0].rules.verify.unwrap().block;
        assert_eq!(block("--verify --bs 64k"), 4096);
        assert_eq!(block("--verify --bssplit 512/50:4k/50 --size 1m"), 512);
    }

    #[test]
    fn bad_words_are_refused_where_they_stand() {
        for text in [
            "--rw sideways",
            "--bs 1000",
            "--iodepth 0",
            "--rwmixread 101",
            "--runtime soon",
            "--runtime 0",
            "--runtime 0ms",
            "--bs 4k --bssplit 4k/100",
            "--runtime 99999999999h",
            "--rate fast",
        ] {
            let line = std::iter::once("braid").chain(text.split_whitespace());
            assert!(Line::try_parse_from(line).is_err(), "{text}");
        }
    }

    #[test]
    fn negative_numbers_are_refused_as_values() {
        for (text, part) in [
            ("--runtime -1", "\"-1\" is not a duration"),
            ("--bs -4k", "\"-4k\""),
            ("--size -1m", "\"-1m\" is not a size"),
            ("--offset -1", "\"-1\" is not a size"),
            ("--rate -1", "\"-1\" is not a rate"),
            ("--rate-iops -1", "\"-1\" is not a whole number"),
            ("--iodepth -1", "-1 is not in 1..=65535"),
            ("--numjobs -1", "-1 is not in 1..=1024"),
            ("--rwmixread -1", "-1 is not in 0..=100"),
        ] {
            let line = std::iter::once("braid").chain(text.split_whitespace());
            let error = Line::try_parse_from(line).err().unwrap().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
