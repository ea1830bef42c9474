//! Time the phases of training on a file: `cargo run --release --example train FILE VOCAB THREADS`.
use std::path::PathBuf;
use std::time::Instant;

use bpe::{count::Counter, merge, pattern::Pattern, special::Specials};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let (path, vocab_size, num_threads) = (PathBuf::from(&arguments[1]), arguments[2].parse::<usize>()?, arguments[3].parse()?);
    let specials = Specials::new(vec!["<|endoftext|>".into()])?;
    let started = Instant::now();
    let mut counter = Counter::new(Pattern::Gpt2, specials);
    counter.add_files(&[path], num_threads, &mut |_| true)?;
    let counted = started.elapsed();
    let stats = counter.stats();
    let distinct = counter.counts().num_distinct();
    let started = Instant::now();
    let options = merge::MergeOptions { num_merges: vocab_size - 257, ..Default::default() };
    let merges = merge::learn_merges(counter.into_counts(), &options, &mut |_| true)?;
    println!("count {counted:?} ({stats:?}, {distinct} distinct), merge {:?}, {} merges, last count {}", started.elapsed(), merges.len(), merges.last().map_or(0, |m| m.count));
    let status = std::fs::read_to_string("/proc/self/status")?;
    for line in status.lines().filter(|l| l.starts_with("VmHWM") || l.starts_with("RssAnon")) { println!("{line}"); }
    Ok(())
}
