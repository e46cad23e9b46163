//! A real model: 104 tensors of all-MiniLM-L6-v2, exactly and in every tier.

mod heavy {
    use std::fs;
    use std::path::Path;

    use half::bf16;
    use safetensors::SafeTensors;
    use safetensors::tensor::TensorView;

    use support::{Mounted, Place, Random, assert_same, fsck, get, minilm, python, run};

    const NAME: &str = "model.safetensors";

    fn imported(options: &[&str]) -> (Place, Mounted) {
        let place = Place::new();
        place.import("demo/minilm", &[&minilm().join(NAME)], options);
        let mounted = place.mount(&[]);
        (place, mounted)
    }

    #[test]
    fn an_exact_import_of_a_model_equals_the_source() {
        let (_place, mounted) = imported(&[]);
        let source = fs::read(minilm().join(NAME)).unwrap();
        let folder = mounted.path("demo/minilm");
        assert_same(&fs::read(folder.join(NAME)).unwrap(), &source, NAME);
        let tensors = SafeTensors::deserialize(&source).unwrap();
        assert_eq!(tensors.len(), 104);
        for (name, view) in tensors.tensors() {
            assert_same(&fs::read(folder.join(&name)).unwrap(), view.data(), &name);
            assert_same(&fs::read(folder.join(".tensors").join(&name)).unwrap(), view.data(), &name);
        }
        assert_eq!(support::names(&folder), [NAME]);
        assert_eq!(support::names(&folder.join(".tensors")).len(), 104);
        python("read_model.py", [minilm().join(NAME), folder]);
    }

    #[test]
    fn an_exported_model_directory_equals_the_imported_one() {
        let place = Place::new();
        place.import("demo/minilm", &[&minilm()], &[]);
        let mounted = place.mount(&[]);
        let compare = format!("diff -r {} {}", minilm().display(), mounted.path("demo/minilm").display());
        support::shell(&place.path(""), &compare);
    }

    /// Stored bits per element over all floats of the model.
    fn bits(folder: &Path) -> f64 {
        let source = fs::read(minilm().join(NAME)).unwrap();
        let (mut stored, mut elements) = (0.0, 0.0);
        for (name, view) in SafeTensors::deserialize(&source).unwrap().tensors() {
            if view.dtype() == safetensors::Dtype::F32 {
                let values = run(["stat".as_ref(), folder.join(&name).as_os_str(), "--json".as_ref()]).json();
                stored += values["bytes_stored"].as_f64().unwrap();
                elements += view.shape().iter().product::<usize>() as f64;
            }
        }
        stored * 8.0 / elements
    }

    fn absmax_reads_as_the_reference(tier: &str, wanted: f64) {
        let (_place, mounted) = imported(&["--tier", &format!("{tier}:all"), "--encoder", "absmax"]);
        let folder = mounted.path("demo/minilm");
        let got = bits(&folder);
        assert!((got / wanted - 1.0).abs() < 0.01, "{got} bits a value, {wanted} wanted");
        let source = minilm().join(NAME);
        python("quantized.py", [source.as_os_str(), folder.as_os_str(), "--tier".as_ref(), tier.as_ref()]);
    }

    #[test]
    fn a_model_in_8_bits_reads_as_the_reference_decodes() {
        absmax_reads_as_the_reference("q8", 8.5);
    }

    #[test]
    fn a_model_in_7_bits_reads_as_the_reference_decodes() {
        absmax_reads_as_the_reference("q7", 7.5);
    }

    #[test]
    fn a_model_in_5_bits_reads_as_the_reference_decodes() {
        absmax_reads_as_the_reference("q5", 5.5);
    }

    #[test]
    fn a_model_in_3_bits_reads_as_the_reference_decodes() {
        absmax_reads_as_the_reference("q3", 3.5);
    }

    #[test]
    fn the_best_encoder_errs_no_more_than_absmax_in_any_group() {
        for tier in ["q8", "q7", "q5", "q3"] {
            let (_place, mounted) = imported(&["--tier", &format!("{tier}:all")]);
            let (source, folder) = (minilm().join(NAME), mounted.path("demo/minilm"));
            let [source, folder] = [source.as_os_str(), folder.as_os_str()];
            let options = ["--tier", tier, "--encoder", "best"].map(AsRef::as_ref);
            python("quantized.py", [source, folder].into_iter().chain(options));
        }
    }

    #[test]
    fn small_flat_and_listed_tensors_stay_exact_without_all() {
        let (_place, mounted) = imported(&["--tier", "q5", "--encoder", "absmax"]);
        let (source, folder) = (minilm().join(NAME), mounted.path("demo/minilm"));
        let [source, folder] = [source.as_os_str(), folder.as_os_str()];
        let options = ["--tier", "q5", "--only-large"].map(AsRef::as_ref);
        python("quantized.py", [source, folder].into_iter().chain(options));
    }

    /// Root mean square of the differences in a tensor, and the error that the mount states.
    fn error_of(tier: &str, tensor: &str) -> (f64, f64) {
        let (_place, mounted) = imported(&["--tier", &format!("{tier}:all")]);
        let source = fs::read(minilm().join(NAME)).unwrap();
        let tensors = SafeTensors::deserialize(&source).unwrap();
        let wanted = tensors.tensor(tensor).unwrap();
        let path = mounted.path(Path::new("demo/minilm").join(tensor));
        let got = fs::read(&path).unwrap();
        assert_eq!(got.len(), wanted.data().len());
        let floats = |bytes: &[u8]| -> Vec<f64> {
            let floats = bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap()));
            floats.map(f64::from).collect()
        };
        let (got, wanted) = (floats(&got), floats(wanted.data()));
        let squares: f64 = got.iter().zip(&wanted).map(|(got, wanted)| (got - wanted).powi(2)).sum();
        let stated = run(["stat".as_ref(), path.as_os_str(), "--json".as_ref()]).json();
        let stated = stated["error"]["rms"].as_f64().unwrap();
        ((squares / got.len() as f64).sqrt(), stated)
    }

    #[test]
    fn two_levels_err_less_than_one_and_the_reported_error_equals_the_measured_one() {
        let tensor = "encoder.layer.0.intermediate.dense.weight";
        let (one, one_stated) = error_of("q3", tensor);
        let (two, two_stated) = error_of("q3x", tensor);
        assert!(two < one && two > 0.0, "q3x {two}, q3 {one}");
        for (measured, stated) in [(one, one_stated), (two, two_stated)] {
            assert!((measured / stated - 1.0).abs() < 1e-3, "{measured} measured, {stated} stated");
        }
    }
    /// The model in bf16, and a fine-tune of it: before rounding, noise of a thousandth of each tensor's standard
    /// deviation is added.
    fn tuned() -> [Vec<u8>; 2] {
        let source = fs::read(minilm().join(NAME)).unwrap();
        let mut random = Random(64);
        let mut versions = [Vec::new(), Vec::new()];
        let mut tensors = SafeTensors::deserialize(&source).unwrap().tensors();
        tensors.retain(|(_, view)| view.dtype() == safetensors::Dtype::F32);
        for (_, view) in &tensors {
            let values = view.data().chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap()));
            let values: Vec<f32> = values.collect();
            let mean = values.iter().map(|value| f64::from(*value)).sum::<f64>() / values.len() as f64;
            let squares: f64 = values.iter().map(|value| (f64::from(*value) - mean).powi(2)).sum();
            let deviation = (squares / values.len() as f64).sqrt();
            let mut noise = || {
                // Twelve uniform numbers have a variance of one.
                let sum: f64 = (0..12).map(|_| random.next() as f64 / u64::MAX as f64).sum();
                ((sum - 6.0) * deviation * 1e-3) as f32
            };
            let in_bf16 = |values: Vec<f32>| -> Vec<u8> {
                values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect()
            };
            let changed = values.iter().map(|value| value + noise()).collect();
            versions[0].push(in_bf16(values));
            versions[1].push(in_bf16(changed));
        }
        versions.map(|data| {
            let view = |(one, data): (&(String, TensorView<'_>), _)| {
                let (name, shape) = (one.0.clone(), one.1.shape().to_vec());
                (name, TensorView::new(safetensors::Dtype::BF16, shape, data).unwrap())
            };
            let views = tensors.iter().zip(data.iter().map(Vec::as_slice)).map(view);
            safetensors::serialize(views, None).unwrap()
        })
    }

    #[test]
    fn a_fine_tune_takes_a_seventh_of_its_size_beside_its_base_and_reads_bit_for_bit() {
        let place = Place::new();
        let [base, tune] = tuned();
        place.import("demo/base", &[&place.write("base/m.safetensors", &base)], &[]);
        let options = ["--parent", "demo/base", "--reconstruct", "delta"];
        place.import("demo/tune", &[&place.write("tune/m.safetensors", &tune)], &options);
        let mounted = place.mount(&[]);
        let container = mounted.path("demo/tune/m.safetensors");
        assert_eq!(get(&container, "tier"), "absent");
        let stored: f64 = get(&container, "bytes_stored").parse().unwrap();
        let ratio = stored / tune.len() as f64;
        assert!(ratio <= 0.14, "{ratio}");
        assert_same(&fs::read(&container).unwrap(), &tune, "the fine-tune");
        mounted.unmount();
        fsck(&place.store());
    }
}
