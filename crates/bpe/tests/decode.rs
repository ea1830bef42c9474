//! Ids to bytes.

use bpe::decode::TokenBytes;
use bpe::error::OutOfMemory;

#[test]
fn an_empty_token_is_missing_for_dense_and_sparse_ids() -> Result<(), OutOfMemory> {
    for far in [2, u32::MAX] {
        let tokens = TokenBytes::new(&[(0, b"a".to_vec()), (1, Vec::new()), (far, b"z".to_vec())])?;
        assert_eq!(tokens.get(0), Some(b"a".as_slice()));
        assert_eq!(tokens.get(far), Some(b"z".as_slice()));
        assert_eq!(tokens.get(1), None);
        assert_eq!(tokens.get(3), None);
        assert!(tokens.decode([0, 1].into_iter(), &mut Vec::new()).is_err());
    }
    Ok(())
}
