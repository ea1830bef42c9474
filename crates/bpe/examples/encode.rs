//! scratch
use std::time::Instant;
use bpe::{encode::Encoder, pattern::Pattern, count::{Counter,Source}, merge, special::Specials};
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let a: Vec<String> = std::env::args().collect();
    let specials = Specials::new(vec!["<|endoftext|>".into()])?;
    let mut counter = Counter::new(Pattern::Gpt2, specials);
    counter.add_files(&[(&a[1]).into()], 2, &mut |_| true)?;
    let options = merge::MergeOptions { num_merges: 50000, ..Default::default() };
    let merges = merge::learn_merges(counter.into_counts(), &options, &mut |_| true)?;
    let mut toks: Vec<Vec<u8>> = (0..=255u8).map(|b| vec![b]).collect();
    let mut ms = vec![];
    for m in &merges { let (l,r)=(toks[m.left as usize].clone(),toks[m.right as usize].clone()); toks.push([l.clone(),r.clone()].concat()); ms.push((l,r)); }
    let tokens: Vec<(u32,Vec<u8>)> = toks.into_iter().enumerate().map(|(i,t)|(i as u32,t)).collect();
    let t=Instant::now();
    let enc = Encoder::new(&tokens,&ms,vec![],Pattern::Gpt2)?;
    println!("build {:?}", t.elapsed());
    let src = Source::open(a[2].as_ref())?;
    let threads: usize = a[3].parse()?;
    for _ in 0..a.get(4).map_or(6, |n| n.parse().unwrap_or(6)) { let t=Instant::now(); let p = enc.encode_pieces::<u16>(&src, threads)?; let d=t.elapsed(); println!("{:?} {:.0} MB/s {} ids", d, src.len() as f64/d.as_secs_f64()/1e6, p.iter().map(|v|v.len()).sum::<usize>()); }
    println!("{}", std::fs::read_to_string("/proc/self/smaps_rollup")?.lines().filter(|l| l.starts_with("AnonHuge")||l.starts_with("Anonymous")).collect::<Vec<_>>().join(" "));
    Ok(())
}
