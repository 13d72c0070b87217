// Uses Confluent's client for JavaScript against a registry, and prints what it got: node confluent_client.cjs URL
const {
  AvroDeserializer, AvroSerializer, JsonDeserializer, JsonSerializer, SchemaRegistryClient, SerdeType,
} = require("@confluentinc/schemaregistry");

const ORDER = { id: 7, user: "ada" };
const AVRO = {
  schemaType: "AVRO",
  schema: JSON.stringify({
    type: "record",
    name: "Order",
    fields: [{ name: "id", type: "long" }, { name: "user", type: "string" }],
  }),
};
const JSON_SCHEMA = {
  schemaType: "JSON",
  schema: JSON.stringify({ type: "object", properties: { id: { type: "integer" }, user: { type: "string" } } }),
};

async function refusal(promise) {
  try {
    return ["no error", await promise];
  } catch (error) {
    return [error.status, error.errorCode];
  }
}

async function main(url, credentials) {
  const basicAuthCredentials = credentials ? { credentialsSource: "USER_INFO", userInfo: credentials } : undefined;
  const client = new SchemaRegistryClient({ baseURLs: [url], basicAuthCredentials });
  const found = {};

  const id = await client.register("js-avro-value", AVRO);
  const avro = await new AvroSerializer(client, SerdeType.VALUE, { useLatestVersion: true }).serialize("js-avro", ORDER);
  found.avroFrame = [avro[0], avro.readUInt32BE(1) === id];
  found.avro = await new AvroDeserializer(client, SerdeType.VALUE, {}).deserialize("js-avro", avro);

  const json = await new JsonSerializer(client, SerdeType.VALUE, { autoRegisterSchemas: false, useLatestVersion: true });
  await client.register("js-json-value", JSON_SCHEMA);
  const text = await json.serialize("js-json", ORDER);
  found.json = await new JsonDeserializer(client, SerdeType.VALUE, {}).deserialize("js-json", text);

  found.subjects = await client.getAllSubjects();
  found.versions = await client.getAllVersions("js-json-value");
  found.byVersion = (await client.getSchemaMetadata("js-avro-value", 1)).id === id;
  found.noLevel = await refusal(client.getCompatibility("js-json-value"));
  await client.updateCompatibility("js-json-value", "FULL");
  found.level = await client.getCompatibility("js-json-value");
  found.otherType = await refusal(client.register("js-json-value", AVRO));
  found.compatible = await client.testCompatibility("js-avro-value", 1, AVRO);
  found.deleted = [await client.deleteSubject("js-json-value"), await client.deleteSubject("js-json-value", true)];
  found.missing = await refusal(client.getLatestSchemaMetadata("none"));
  return found;
}

main(process.argv[2], process.argv[3]).then(
  (found) => console.log(JSON.stringify(found)),
  (error) => {
    console.error(error);
    process.exitCode = 1;
  },
);
