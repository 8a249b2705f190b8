"""How to serve what was exported, in the lines that a user types; for help, and for the verb."""

LINES = {
    "stablehlo": """from jax import export  # pip install jax flatbuffers
model = export.deserialize(bytearray(open("OUT/model.stablehlo", "rb").read()))
probabilities = model.call(images)  # uint8 [batch, height, width, 3]""",
    "onnx": """import onnxruntime  # pip install onnxruntime
model = onnxruntime.InferenceSession("OUT/model.onnx")
probabilities = model.run(None, {"images": images})[0]  # uint8 [batch, height, width, 3]""",
}
