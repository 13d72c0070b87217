"""The rules of a cluster: who the members are, which broker owns a topic, and what the coordinator does.

Decisions are pure; shells carry them out, over any metadata store.

=====================  ================================================================================
``peer_list``          ``--peers``: which addresses are listed, and which of them is this broker
``forming``            the first start: wait, form the cluster with all listed brokers, or join it
``records``            the records of the cluster in the metadata, and their keys
``session``            whether the session of this broker is certain to be alive
``ownership``          the owner of a topic: this broker, another one, or one that is away
``placement``          which broker gets a new topic, or one whose owner has died
``coordinator``        what has to be done, given everything that the metadata say
``absences``           for how long brokers have been away, as this one has seen it
``status``             the status of the cluster, composed from its tables and what brokers tell of themselves
``explain``            what is the matter with a broker or a topic, in sentences
``checkup``            the checks of ``danube doctor --cluster``
``asking``             what brokers ask each other for all that
``gathering``          shell: asks the listed brokers until ``forming`` decides
``membership``         shell: this broker's record and session, and its view of the others
``coordinating``       shell: the election of the coordinator, and its actions
=====================  ================================================================================
"""
