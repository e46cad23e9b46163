"""A model of ONNX with its weights in a file of their own, which the runtime maps."""
from same import compare

# snippet
import numpy as np
import onnxruntime


def load(folder):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(f"{folder}/model.onnx", options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": np.linspace(-1, 1, 512, dtype="f4").reshape(2, 256)})
# end


if __name__ == "__main__":
    compare(load)
