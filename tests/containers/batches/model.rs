//! The embedding table of a real model as a batch.

mod heavy {
    use std::fs;

    use crate::batches::batch::checked;
    use support::{Place, assert_same, minilm, python, set};

    #[test]
    fn a_word_embedding_table_is_a_valid_batch_exactly_and_in_8_bits() {
        let place = Place::new();
        let stem = place.path("words");
        let source = minilm().join("model.safetensors");
        python("embeddings.py", ["make".as_ref(), source.as_os_str(), stem.as_os_str()]);
        let (batch, index) = (place.path("words.cgeb"), place.path("words.cgei"));
        place.import("t/c", &[&batch, &index], &[]);
        let mounted = place.mount(&[]);
        let collection = mounted.path("t/c");
        let (served, served_index) = (collection.join("words.cgeb"), collection.join("words.cgei"));
        let source = fs::read(&batch).unwrap();
        assert_eq!(source.len(), 30_522 * 8192);
        assert_same(&fs::read(&served).unwrap(), &source, "the batch");
        assert_same(&fs::read(&served_index).unwrap(), &fs::read(&index).unwrap(), "the index");
        python("embeddings.py", ["exact".as_ref(), stem.as_os_str(), collection.as_os_str()]);
        for (name, value) in [("lossy", "allow"), ("encoder", "absmax"), ("tier", "q8:all")] {
            set(&served, name, value).unwrap();
        }
        python("embeddings.py", ["bound".as_ref(), stem.as_os_str(), collection.as_os_str()]);
        assert_eq!(checked(&served, &served_index), (30_522, 30_522));
    }
}
