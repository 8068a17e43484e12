//! The programs in C and C++ of the book: each block is a whole program that prints what the block of text behind it
//! says. The front page of this crate has a piece of one, which compiles.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::program;

/// The code blocks of a page: language and text.
fn blocks(page: &str) -> Vec<(String, String)> {
    let mut blocks: Vec<(String, String)> = Vec::new();
    let mut inside = false;
    for line in page.lines() {
        match (line.strip_prefix("```"), inside) {
            (Some(language), false) => {
                blocks.push((language.to_owned(), String::new()));
                inside = true;
            }
            (Some(_), true) => inside = false,
            (None, true) => {
                let (_, text) = blocks.last_mut().expect("a block has begun");
                text.push_str(line);
                text.push('\n');
            }
            (None, false) => {}
        }
    }
    blocks
}

fn pages() -> Vec<PathBuf> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let mut pages: Vec<_> = fs::read_dir(docs).unwrap().map(|entry| entry.unwrap().path()).collect();
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.sort();
    pages
}

#[test]
fn the_programs_of_the_book_print_what_it_says() {
    let out = TempDir::new().unwrap();
    let mut run = 0;
    for page in pages() {
        let blocks = blocks(&fs::read_to_string(&page).unwrap());
        for (index, (language, text)) in blocks.iter().enumerate() {
            let (compiler, standard) = match language.as_str() {
                "c" => ("cc", "-std=c11"),
                "cpp" => ("c++", "-std=c++17"),
                _ => continue,
            };
            let source = out.path().join(format!("block.{language}"));
            fs::write(&source, text).unwrap();
            let expected = blocks.get(index + 1).filter(|(language, _)| language == "text");
            let (_, expected) = expected.unwrap_or_else(|| panic!("{}: what does it print?", page.display()));
            for flags in [&program::SHARED[..], &program::STATIC_SANITIZED] {
                let printed = program::run(compiler, &source, &[&[standard], flags].concat());
                assert_eq!(&printed, expected, "{}", page.display());
            }
            run += 1;
        }
    }
    assert!(run >= 1, "{run} programs in the book");
}

/// What the piece of a program on the crate's page leaves out.
const BEFORE: &str = "
#include <kvcache.h>
#include <stdio.h>
void piece(DLTensor current_key, DLTensor current_value, DLTensor seqstarts, DLTensor kvstarts, DLTensor cachestarts,
           DLTensor start_pos, DLTensor max_seqlen, DLTensor max_kvlen, DLTensor cache, DLTensor key, DLTensor value);
void piece(DLTensor current_key, DLTensor current_value, DLTensor seqstarts, DLTensor kvstarts, DLTensor cachestarts,
           DLTensor start_pos, DLTensor max_seqlen, DLTensor max_kvlen, DLTensor cache, DLTensor key, DLTensor value)
{
";
const BEHIND: &str = "
}
int main(void) { return 0; }
";

#[test]
fn the_piece_on_the_front_page_compiles() {
    let blocks = blocks(include_str!("../../README.md"));
    let [(_, piece)] = blocks.iter().filter(|(language, _)| language == "c").collect::<Vec<_>>()[..] else {
        panic!("expected one block of C");
    };
    let out = TempDir::new().unwrap();
    let source = out.path().join("piece.c");
    fs::write(&source, format!("{BEFORE}{piece}{BEHIND}")).unwrap();
    assert_eq!(program::run("cc", &source, &["-std=c11", "-lkvcache"]), "");
}
